"""A real browser for tests: Debian's Chromium, told by its driver over W3C WebDriver. Needs no package of Python's."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

WHY_NOT: Final = (
    "there is no Chromium with its driver: apt-get install chromium chromium-driver"
    if shutil.which("chromedriver") is None or shutil.which("chromium") is None
    else ""
)
"""Why no browser can be had here; empty: one can."""
ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"
READY_S: Final = 60.0
LOOK_AGAIN_S: Final = 0.05


class Browser:
    """One window."""

    def __init__(self, driver: str, session: str) -> None:
        self._root = f"{driver}/session/{session}"

    def open(self, address: str) -> None:
        """Go there, and wait until it is loaded."""
        self._ask("POST", "/url", {"url": address})

    @property
    def address(self) -> str:
        return str(self._ask("GET", "/url"))

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script's body in the page, and return what it returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script: str, *arguments: Any) -> Any:
        """As `run`; the script calls its last argument with the result."""
        return self._ask("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def text(self, selector: str = "body") -> str:
        """The text there, as a person reads it; empty where there is no such element."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def click(self, selector: str) -> None:
        self._ask("POST", f"/element/{self._element(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self._ask("POST", f"/element/{self._element(selector)}/value", {"text": text})

    def press(self, key: str) -> None:
        """A key, wherever the focus is."""
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def resize(self, width: int, height: int) -> None:
        """The page's own width, also below the least of a window."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """As the system of a person who likes it `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", {"features": features})

    def complaints(self) -> list[str]:
        """Errors that the browser has met since it was last asked."""
        return [
            each["message"] for each in self._ask("POST", "/se/log", {"type": "browser"}) if each["level"] == "SEVERE"
        ]

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot. `whole`: of all of the page, not of the part in view."""
        if not whole:
            path.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))
            return
        height = self.run("return document.documentElement.scrollHeight")
        width = self.run("return window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.devtools("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(shot["data"]))

    def until(self, script: str, *arguments: Any) -> Any:
        """Wait until a script's body returns something true, and return that."""
        limit = time.monotonic() + READY_S
        while not (found := self.run(script, *arguments)):
            assert time.monotonic() < limit, f"not in time: {script} in {self.text()[:2000]}"
            time.sleep(LOOK_AGAIN_S)
        return found

    def until_says(self, text: str, selector: str = "body") -> None:
        """Wait until this text stands there."""
        self.until(
            "return (document.querySelector(arguments[1])?.innerText ?? '').includes(arguments[0])", text, selector
        )

    def _element(self, selector: str) -> str:
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[ELEMENT])

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return ask(method, self._root + path, body)


def ask(method: str, address: str, body: dict[str, Any] | None = None) -> Any:
    """One request to the driver. Raises AssertionError with the driver's words where it fails."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=READY_S) as answer:
            return json.loads(answer.read())["value"]
    except urllib.error.HTTPError as error:
        told = error.read().decode(errors="replace")
        raise AssertionError(f"{method} {address}: {told[:2000]}") from None


@contextmanager
def browser(*arguments: str) -> Iterator[Browser]:
    """A headless browser with a profile of its own."""
    with tempfile.TemporaryDirectory(prefix="headrace-browser-") as profile:
        command = ["chromedriver", "--port=0"]
        homes = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), profile)
        driver = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **homes}
        )
        try:
            root = f"http://127.0.0.1:{_port(driver)}"
            session = ask("POST", f"{root}/session", _wishes(profile, arguments))["sessionId"]
            try:
                yield Browser(root, session)
            finally:
                ask("DELETE", f"{root}/session/{session}")
        finally:
            driver.terminate()
            driver.communicate()


def _port(driver: subprocess.Popen[str]) -> int:
    assert driver.stdout is not None
    for line in driver.stdout:
        if "successfully on port" in line:
            return int(line.rstrip().rstrip(".").rpartition(" ")[2])
    raise AssertionError("the driver ended before it listened")


def _wishes(profile: str, more: Sequence[str]) -> dict[str, Any]:
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    arguments += [f"--user-data-dir={profile}", "--no-first-run", "--disable-background-networking", *more]
    options = {"args": arguments, "binary": shutil.which("chromium")}
    logs = {"browser": "ALL"}
    return {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": logs}}}
