"""`make console-shots`: pictures of the console's pages, of a cluster under load, in Debian's Chromium.

They are put into var/console, at 1280 and 390 pixels, light and dark. Brings axe-core for the browser's tests where npm
is there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.processes import ProcessCluster
from tests.console.browser import WHY_NOT, browser
from tests.console.test_in_a_browser import AXE, console
from tests.console.test_pipelines import fill as fill_pipelines

ROOT: Final = Path(__file__).resolve().parents[1]
PLACE: Final = ROOT / "var" / "console"
AXE_PACKAGE: Final = "axe-core@4.14.1"
TOPICS: Final = {"orders": 6, "payments": 3, "clicks": 12, "customers": 3, "telemetry.sensors": 24, "dead-letters": 1}
SMALL: Final = {"segment.bytes": "65536"}
"""Closed segments go to the store soon."""
SIZES: Final = ((1280, 800), (390, 844))
LOOKS_S: Final = 15.0
"""How long the cluster is under load before the first picture, so that charts have some points."""
PAGES: Final = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "records": "/topics/orders/records?count=20",
    "groups": "/groups",
    "group": "/groups/billing",
    "transactions": "/transactions",
    "moves": "/moves",
    "history": "/history",
    "history-of-one": "/history/orders/0",
    "access": "/access",
    "quotas": "/quotas",
    "reset": "/group-reset?group=billing&to=earliest",
    "delete": "/topic-delete?topic=dead-letters",
    "delete-records": "/records-delete?topic=orders&partition=0&before=5",
    "pipelines": "/pipelines",
    "pipeline": "/pipelines/all",
    "write": "/record-produce?topic=orders",
    "drain": "/broker-drain?broker=2",
}


class Load:
    """Writes and reads until it is told to end."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def wait(self, seconds: float) -> None:
        """Let it go on for so long."""
        self._over.wait(seconds)

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        settings = {"bootstrap.servers": self._bootstrap, "auto.offset.reset": "earliest"}
        readers = [Consumer({**settings, "group.id": name, "client.id": f"{name}-1"}) for name in ("billing", "fraud")]
        for reader in readers:
            reader.subscribe(["orders", "payments"])
        number = 0
        while not self._over.wait(0.1):
            for _ in range(20):
                number += 1
                headers: list[tuple[str, str | bytes | None]] = [("source", "till")]
                value = f'{{"order": {number}, "total": {number % 97}.5, "items": [{{"sku": "A-{number % 30}"}}]}}'
                producer.produce("orders", value, key=f"customer-{number % 40}", headers=headers)
                producer.produce("clicks", f"/product/{number % 300}")
                if number % 3 == 0:
                    producer.produce("payments", f'{{"order": {number}}}', key=f"customer-{number % 40}")
            producer.poll(0)
            for reader in readers:
                reader.consume(100, 0.01)
        producer.flush(30)
        for reader in readers:
            reader.close()


def main() -> int:
    if WHY_NOT:
        print(f"No pictures are made: {WHY_NOT}.", file=sys.stderr)
        return 1
    bring_axe()
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as data:
        store = {"durable.url": f"file://{data}/store"}
        with ProcessCluster(3, configs=store, data=Path(data) / "brokers") as cluster:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            topics = [NewTopic(name, count, config=SMALL) for name, count in TOPICS.items()]
            for future in admin.create_topics(topics).values():
                future.result(60)
            pipelines = Path(data) / "pipelines"
            pipelines.mkdir()
            fill_pipelines(pipelines)
            with console(cluster.bootstrap, "--pipelines", str(pipelines)) as address:
                load = Load(cluster.bootstrap)
                with load:
                    load.wait(LOOKS_S)
                    take(address, load)
    print(f"the pictures are in {PLACE}")
    return 0


def take(address: str, load: Load) -> None:
    """All pages, in all sizes and colours."""
    with browser() as page:
        for name, path in PAGES.items():
            for width, height in SIZES:
                for scheme in ("light", "dark"):
                    page.resize(width, height)
                    page.prefer(scheme)
                    page.open(address + path)
                    load.wait(2.5)
                    page.picture(PLACE / f"{name}-{width}-{scheme}.png", whole=width > 500)


def bring_axe() -> None:
    """The accessibility checks for the browser's tests, where npm brings them."""
    if AXE.exists() or shutil.which("npm") is None:
        return
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(["npm", "pack", AXE_PACKAGE], cwd=place, capture_output=True, check=False)
        packed = next(Path(place).glob("*.tgz"), None)
        if done.returncode or packed is None:
            print("axe-core cannot be had: the browser's tests go without.", file=sys.stderr)
            return
        with tarfile.open(packed) as tar:
            member = tar.extractfile("package/axe.min.js")
            assert member is not None
            AXE.parent.mkdir(parents=True, exist_ok=True)
            AXE.write_bytes(member.read())


if __name__ == "__main__":
    sys.exit(main())
