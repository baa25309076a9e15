"""A broker that lasts has loaded everything before it serves, and each module can be imported by itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import headrace

SOURCES: Final = Path(headrace.__path__[0])
ROOMS: Final = ("broker", "controller", "coordinators", "replica", "storage")
AT_THE_START: Final = {
    "headrace.broker.foundation.redis": "the engine",
    "headrace.broker.metrics.collecting": "the room of metrics",
    "headrace.broker.metrics.endpoint": "the room of metrics",
    "headrace.broker.metrics.health": "the room of metrics",
    "headrace.broker.requests.audit": "an authorizer",
    "headrace.broker.requests.authentication": "a listener with SASL",
    "headrace.broker.requests.certificates": "a listener with TLS",
    "headrace.broker.requests.oauth_keys": "a listener with tokens",
    "headrace.net.client.security.tokens": "brokers that log in at each other",
    "headrace.net.server.authentication": "the room of metrics",
    "headrace.security.jaas": "headrace up --secure",
    "headrace.security.oauth": "a listener with tokens",
    "headrace.security.principals": "brokers that show certificates to each other",
    "headrace.security.x500": "brokers that show certificates to each other",
    "headrace.storage.remote": "the durable store",
}
"""These are loaded late, but while a broker starts: what makes them."""
LOADED: Final = """
import sys
from headrace.broker.boot import load_ahead
load_ahead()
print(*sys.modules)
"""
EACH: Final = """
import importlib, pkgutil, headrace
found = [each.name for each in pkgutil.walk_packages(headrace.__path__, "headrace.") if "__main__" not in each.name]
for name in found:
    importlib.import_module(name)
print(len(found))
"""


def said(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stdout


def late_imports(path: Path) -> Iterator[str]:
    """Our modules that functions of this file import."""
    tree = ast.parse(path.read_text())
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in (node for function in functions for node in ast.walk(function)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace."):
            assert node.module is not None
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                is_module = (SOURCES.parent / f"{inner.replace('.', '/')}.py").exists()
                yield inner if is_module else node.module


def test_nothing_of_ours_is_left_to_be_imported_while_a_broker_serves() -> None:
    loaded = set(said(LOADED).split())
    files = [path for room in ROOMS for path in (SOURCES / room).rglob("*.py")]
    late = {module for path in files for module in late_imports(path)}
    assert late - loaded == set(AT_THE_START)
    assert all(find_spec(module) for module in late)


def test_each_module_can_be_imported() -> None:
    assert int(said(EACH)) > 900
