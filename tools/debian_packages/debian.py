"""Installs a package of Debian for tests, where there is apt, and root or sudo without a password.

It never fails: it returns the reason, so that tests can skip with it. Tests install nothing themselves.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

INSTALL_TIMEOUT_S: Final = 300.0


def install(package: str) -> str:
    """Why it failed, in a few words; empty where its program of the same name is there."""
    if shutil.which(package):
        return ""
    if shutil.which("apt-get") is None:
        return "there is no apt-get on the PATH"
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if as_root and shutil.which("sudo") is None:
        return "apt-get needs root, and there is no sudo"
    print(f"installing {package} by apt-get", flush=True)
    apt = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    for command in ([*apt, "update"], [*apt, "install", "--no-install-recommends", package]):
        if reason := failure("apt-get", command):
            return reason
    return "" if shutil.which(package) else f"apt-get installed no {package}"


def failure(program: str, command: Sequence[str]) -> str:
    """Why this command failed, in a few words; empty where it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"{program} took longer than {INSTALL_TIMEOUT_S:.0f} s"
    if done.returncode:
        return f"{program} said: {((done.stderr or done.stdout).strip().splitlines() or ['nothing'])[-1][:200]}"
    return ""
