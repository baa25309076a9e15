"""Loaded into a public suite's own pytest with `-p`: deselects the tests in its data file, and adds missing parts.

It changes no test. It stands in for their environment. It has the two files that kafka-python's sdist leaves out, and
the fixtures with which aiokafka starts Kafka and Kerberos in Docker. It runs in the suite's environment and imports
nothing of Headrace. It writes the deselected tests, and patterns that no longer match, to HEADRACE_SUITE_REPORT.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest

DATA: Final[Mapping[str, Any]] = tomllib.loads(Path(os.environ["HEADRACE_SUITE_DATA"]).read_text())
BOOTSTRAP: Final = os.environ["HEADRACE_SUITE_BOOTSTRAP"]
ONLY_LISTED: Final = os.environ.get("HEADRACE_SUITE_ONLY_LISTED") == "1"
ENGINE: Final = os.environ["HEADRACE_SUITE_ENGINE"]
"""The engine of the broker. A group may be of one alone."""
NOBODY: Final = 1
"""A port where nothing listens: those of TLS and SASL."""


def reason_of(case: str, groups: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The group that lists the case, by its id or by the start of it with `*`."""
    for group in groups:
        for pattern in group["cases"]:
            if case == pattern or (pattern.endswith("*") and case.startswith(pattern[:-1])):
                return group
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what is to be run: all that asks for a broker and is not listed, or of those listed what ends by itself."""
    if fixture := DATA.get("needs"):
        bare = [item for item in items if fixture not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=bare)
        items[:] = [item for item in items if fixture in getattr(item, "fixturenames", ())]
    groups = [group for group in DATA.get("deselected", []) if group.get("engine", ENGINE) == ENGINE]
    listed = {item.nodeid: reason_of(item.nodeid, groups) for item in items}
    _report(listed, groups)
    if ONLY_LISTED:
        kept = [item for item in items if (group := listed[item.nodeid]) is not None and not group.get("waits", False)]
    else:
        kept = [item for item in items if listed[item.nodeid] is None]
    chosen = {item.nodeid for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = kept


def _report(listed: Mapping[str, Mapping[str, Any] | None], groups: list[Mapping[str, Any]]) -> None:
    patterns = [pattern for group in groups for pattern in group["cases"]]
    told = {
        "collected": len(listed),
        "deselected": {case: group["reason"] for case, group in listed.items() if group is not None},
        "stale": [p for p in patterns if not any(reason_of(case, [{"cases": [p]}]) for case in listed)],
    }
    Path(os.environ["HEADRACE_SUITE_REPORT"]).write_text(json.dumps(told))


class ExternalService:
    """A broker that runs already, as kafka-python's fixtures hold it."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def open(self) -> None:
        """Nothing to start."""

    def close(self) -> None:
        """Nothing to stop."""


class SpawnedService:
    """A Java process of the suite's own: this run has none."""

    def __init__(self, *_: object, **__: object) -> None:
        raise NotImplementedError("this run has no Kafka of its own")


def _complete_kafka_python() -> None:
    """Its sdist lacks `test/__init__.py` and `test/service.py`; without the first, Python's own `test` is found."""
    package = ModuleType("test")
    package.__path__ = [str(Path.cwd() / "test")]
    service = ModuleType("test.service")
    vars(service).update(ExternalService=ExternalService, SpawnedService=SpawnedService)
    sys.modules.update({"test": package, "test.service": service})


def _fixtures_of_aiokafka() -> Mapping[str, object]:
    host, _, port = BOOTSTRAP.rpartition(":")
    nowhere = dict.fromkeys(("ssl_port", "sasl_plain_port", "sasl_ssl_port"), NOBODY)
    server = SimpleNamespace(host=host, port=int(port), hosts=[BOOTSTRAP], container=None, **nowhere)
    missing = dict.fromkeys(("docker", "ssl_folder", "acl_manager", "kafka_config", "kerberos_utils"))
    return {**missing, "kafka_image": "headrace", "kafka_server": server}


STAND_INS: Final = _fixtures_of_aiokafka() if DATA["name"] == "aiokafka" else {}
if DATA["name"] == "kafka-python":
    _complete_kafka_python()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> object | None:
    """A conftest's fixture comes before a plugin's of that name; so its value is given where it would be made."""
    if fixturedef.argname not in STAND_INS:
        return None
    fixturedef.cached_result = (STAND_INS[fixturedef.argname], fixturedef.cache_key(request), None)
    return True  # the hook's callers look no further, and at no value but the cached one
