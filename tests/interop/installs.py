"""Install the pinned packages of the real peers once, into a cache outside the repository.

Node's packages are those of package.json. The Python packages get a virtual environment of their
own: what they need would not go together with what the tests need. WSMUX_INTEROP_CACHE names
another cache directory.

Needs npm or pip, and a POSIX system (file locks).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Unavailable", "install_environment", "install_modules"]

HERE = Path(__file__).parent

NPM_OPTIONS = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts")
PIP_OPTIONS = ("--quiet", "--no-input", "--disable-pip-version-check")

INSTALL_TIMEOUT = 300.0
LOCK_POLL = 0.1


class Unavailable(Exception):
    """Say why the real peer cannot be run here."""


def install_modules() -> Path:
    """Install what package.json names, if not yet there.

    Returns the directory that holds `node_modules`.

    Raises:
        Unavailable: node or npm is missing, or the installation failed.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not on the PATH")
    manifest = (HERE / "package.json").read_bytes()

    def install(directory: Path, deadline: float) -> None:
        (directory / "package.json").write_bytes(manifest)
        _run(deadline, directory, "npm", "install", *NPM_OPTIONS)

    return _cached(manifest, install)


def install_environment() -> Path:
    """Make a virtual environment with what requirements.txt names, if not yet there.

    Returns its interpreter.

    Raises:
        Unavailable: the installation failed.
    """
    requirements = (HERE / "requirements.txt").read_bytes()
    interpreter = f"{sys.base_prefix} {sys.version}".encode()

    def install(directory: Path, deadline: float) -> None:
        (directory / "requirements.txt").write_bytes(requirements)
        _run(deadline, directory, sys.executable, "-m", "venv", ".")
        install = ("install", *PIP_OPTIONS, "-r", "requirements.txt")
        _run(deadline, directory, "bin/python", "-I", "-m", "pip", *install)

    return _cached(requirements + interpreter, install) / "bin" / "python"


def _cached(key: bytes, install: Callable[[Path, float], None]) -> Path:
    """Return the directory for `key`, and fill it before if it is not there."""
    given = os.environ.get("WSMUX_INTEROP_CACHE")
    base = Path(given) if given else Path.home() / ".cache" / "wsmux-interop"
    target = base / hashlib.sha256(key).hexdigest()[:16]
    if target.exists():
        return target
    base.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + INSTALL_TIMEOUT
    with (base / "lock").open("w") as lock:
        _take_lock(lock.fileno(), deadline)
        if target.exists():
            return target
        # Renamed when whole, so that an interrupted installation is never taken for a good one.
        # A virtual environment bears that, except for the scripts beside its interpreter.
        scratch = Path(tempfile.mkdtemp(dir=base))
        try:
            install(scratch, deadline)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def _take_lock(descriptor: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise Unavailable("another process holds the installation lock") from error
            time.sleep(LOCK_POLL)
        else:
            return


def _run(deadline: float, directory: Path, *command: str) -> None:
    what = " ".join(command)
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=max(0.0, deadline - time.monotonic()),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{what} was not done after {INSTALL_TIMEOUT:.0f} s") from error
    if done.returncode != 0:
        raise Unavailable(f"{what} failed: {done.stderr.strip()[-500:]}")
