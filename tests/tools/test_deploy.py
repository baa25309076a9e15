"""The files of deploy/ work as far as they can be tried here: the wheel, the unit, the compose file."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import SystemRandom

import pytest

from headrace.broker.home.ports import HeldPorts
from headrace.broker.metrics.catalog import METRICS
from tests.tiers import IS_LONG

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
"""An environment in which the tree's own `headrace` is not found."""
READY_S = 60


def test_the_wheel_runs_in_an_environment_with_nothing_else(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    built = [*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(built, check=True, env=CLEAN, cwd=tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    venv.EnvBuilder(with_pip=False).create(tmp_path / "empty")
    into = [*pip, "--python", str(tmp_path / "empty")]
    if IS_LONG:
        _install_locked(into)
        subprocess.run([*into, "install", "--no-index", str(wheel)], check=True, env=CLEAN)  # and they suffice
    else:  # the requirements are those of this environment, whose own `headrace` a path file does not reach
        install = [*into, "install", "--no-index", "--no-deps", "--no-compile", str(wheel)]
        subprocess.run(install, check=True, env=CLEAN)
        [packages] = (tmp_path / "empty" / "lib").glob("python*/site-packages")
        (packages / "tests.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    command = str(tmp_path / "empty" / "bin" / "headrace")
    told = subprocess.run([command, "--version"], check=True, env=CLEAN, cwd=tmp_path, capture_output=True, text=True)
    assert told.stdout.startswith("headrace ")


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    text = (DEPLOY / "headrace.service").read_text(encoding="utf-8")
    unit = tmp_path / "headrace.service"
    unit.write_text(text.replace("/opt/headrace/bin/headrace", sys.executable), encoding="utf-8")
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], check=False, capture_output=True, text=True
    )
    assert [line for line in told.stderr.splitlines() if "headrace" in line] == []
    assert told.returncode == 0, told.stderr


def test_the_unit_is_sandboxed() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    unit = str(DEPLOY / "headrace.service")
    judged = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", unit]
    told = subprocess.run(judged, check=False, capture_output=True, text=True)
    if "unrecognized option" in told.stderr:
        pytest.skip("this systemd-analyze cannot judge a unit that is not installed")
    assert told.returncode == 0, told.stdout


def test_alerts_are_raised_when_they_should_and_name_metrics_that_there_are() -> None:
    rules = (DEPLOY / "prometheus" / "headrace.rules.yaml").read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:kafka|headrace)_[a-z_]+", rules))
    assert named
    assert named <= set(METRICS)
    if shutil.which("promtool") is None:
        pytest.skip("there is no promtool here to test the alert rules with")
    test = str(DEPLOY / "prometheus" / "headrace.test.yaml")
    told = subprocess.run(["promtool", "test", "rules", test], check=False, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.parametrize("options", [[], ["--set", "drainOnStop=true,envFromSecret=store,storage.className=fast"]])
def test_the_chart_is_taken_by_helm_and_its_objects_by_their_schemas(options: list[str], tmp_path: Path) -> None:
    """`make chart` installs both programs. A wrong field shows that the schemas are looked at."""
    helm = _chart_program("helm")
    if helm is None:
        pytest.skip("there is no helm here to render the chart with")
    chart = str(DEPLOY / "helm" / "headrace")
    for command in ([helm, "lint", chart], [helm, "template", "a", chart, *options]):
        told = subprocess.run(command, check=False, capture_output=True, text=True)
        assert told.returncode == 0, told.stdout + told.stderr
    assert set(re.findall(r"^kind: (\w+)$", told.stdout, re.MULTILINE)) == {
        "Service",
        "PodDisruptionBudget",
        "StatefulSet",
    }
    validate = _chart_program("kubernetes-validate")
    if validate is None:
        pytest.skip("there is no kubernetes-validate here: the chart was rendered and not compared with schemas")
    objects = tmp_path / "objects.yaml"
    for version in ("1.30", "1.37"):
        command = [validate, "--strict", "--kubernetes-version", version, str(objects)]
        objects.write_text(told.stdout, encoding="utf-8")
        judged = subprocess.run(command, check=False, capture_output=True, text=True)
        assert judged.returncode == 0, judged.stdout + judged.stderr
        objects.write_text(told.stdout.replace("serviceName:", "servicesName:"), encoding="utf-8")
        assert subprocess.run(command, check=False, capture_output=True).returncode == 1


def _chart_program(name: str) -> str | None:
    """From where `make chart` puts it, or from the PATH."""
    return shutil.which(name, path=f"{ROOT / '.venv' / 'chart' / 'bin'}{os.pathsep}{os.environ['PATH']}")


def test_the_containerfile_copies_what_there_is_and_listens_on_loopback_until_told() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    copied = [name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for name in line.split()]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert "--listen" not in "".join(re.findall(r"^(?:CMD|ENTRYPOINT).*", text, re.MULTILINE))


def test_the_commands_of_the_compose_file_are_one_cluster(tmp_path: Path) -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    commands = [json.loads(found) for found in re.findall(r"command: (\[.*\])", text)]
    assert len(commands) == 3
    held = HeldPorts.free("127.0.0.1", 3, SystemRandom())
    ports = dict(zip(("broker-1:9092", "broker-2:9093", "broker-3:9094"), held.numbers, strict=True))
    with ExitStack() as running:
        running.callback(held.release)
        for number, command in enumerate(commands, 1):
            here = [_here(word, ports, tmp_path / str(number)) for word in command]
            running.enter_context(_broker(here))
        first = next(iter(ports.values()))
        listing = [sys.executable, "-m", "headrace.cli.main", "broker", "list", "--json", "--bootstrap"]
        told = subprocess.run([*listing, f"127.0.0.1:{first}"], check=True, capture_output=True, text=True)
        listed = [json.loads(line) for line in told.stdout.splitlines()]
        assert [each["state"] for each in listed] == ["live"] * 3


def test_ports_are_published_on_loopback_alone() -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    published = re.findall(r'ports: \["(.*)"\]', text)
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def _install_locked(into: list[str]) -> None:
    """Installs the locked requirements, and nothing else, as `make venv` does."""
    locked = [
        *into,
        "install",
        "--require-hashes",
        "--only-binary=:all:",
        "-r",
        str(ROOT / "requirements" / "core.txt"),
    ]
    got = subprocess.run(locked, check=False, env=CLEAN, capture_output=True, text=True)
    if got.returncode and "Connection" in got.stderr:
        pytest.skip("there is no package index to install the wheel's requirements from")
    assert got.returncode == 0, got.stderr


def _here(word: str, ports: dict[str, int], data: Path) -> str:
    for name, port in ports.items():
        word = word.replace(name, f"127.0.0.1:{port}").replace(f"0.0.0.0:{name[-4:]}", f"127.0.0.1:{port}")
    return word.replace("/var/lib/headrace", str(data)).replace("127.0.0.1:9404", "127.0.0.1:0")


@contextmanager
def _broker(command: list[str]) -> Iterator[None]:
    """Runs it from its line "ready" to the end of the block."""
    asked = [sys.executable, "-m", "headrace.cli.main", *command]
    process = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("ready "), command
        yield
    finally:
        process.kill()
        process.communicate(timeout=READY_S)
