"""Install the pinned packages of the real peers once, into a cache outside the repository.

Node's packages are those of package.json. The Python packages get virtual environments of their
own: what they need would not go together with what the tests need, and may need another Python.
WSMUX_INTEROP_CACHE names another cache directory.

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

__all__ = [
    "PIP_OPTIONS",
    "Unavailable",
    "cached",
    "find_python",
    "install_environment",
    "install_modules",
    "run",
]

HERE = Path(__file__).parent

NPM_OPTIONS = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts")
PIP_OPTIONS = ("--quiet", "--no-input", "--disable-pip-version-check", "--no-compile")

# Interpreters to look for, as they are called on the PATH.
PYTHONS = ("python3.12", "python3.13", "python3")

# The version, and the interpreter itself where a virtual environment only points to it.
PROBE = "import sys; print(*sys.version_info[:3], sys._base_executable)"
PROBE_TIMEOUT = 30.0

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
        run(deadline, directory, "npm", "install", *NPM_OPTIONS)

    return cached(manifest, install)


def install_environment(name: str, oldest: tuple[int, int]) -> Path:
    """Make a virtual environment with what a file of requirements names, if not yet there.

    Returns its interpreter.

    Raises:
        Unavailable: there is no Python as new as `oldest`, or the installation failed.
    """
    requirements = (HERE / name).read_bytes()
    version, python = find_python(oldest)

    def install(directory: Path, deadline: float) -> None:
        (directory / name).write_bytes(requirements)
        run(deadline, directory, python, "-m", "venv", ".")
        install = ("install", *PIP_OPTIONS, "-r", name)
        run(deadline, directory, "bin/python", "-I", "-m", "pip", *install)

    key = requirements + f"{python} {version}".encode()
    return cached(key, install) / "bin" / "python"


def find_python(oldest: tuple[int, int]) -> tuple[tuple[int, ...], str]:
    """Return the version and the path of this Python, or of one on the PATH that is new enough.

    Raises:
        Unavailable: there is none.
    """
    candidates = [(sys.executable, "python3")]
    for name in PYTHONS:
        paths = (shutil.which(name, path=directory) for directory in os.get_exec_path())
        candidates += [(path, name) for path in paths if path is not None]
    for path, name in candidates:
        found = _probe(path, name)
        if found is not None and found[0] >= oldest:
            return found
    raise Unavailable(f"no Python from {'.'.join(map(str, oldest))} up is on the PATH")


def _probe(path: str, name: str) -> tuple[tuple[int, ...], str] | None:
    """Return the version and the true path of an interpreter, if it runs."""
    # Where pyenv has put a program of its own in the place of each, this says which to run.
    chosen = {"PYENV_VERSION": name.removeprefix("python")}
    try:
        done = subprocess.run(
            [path, "-I", "-c", PROBE],
            env=os.environ | chosen,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None  # not one that can be used; there may be others
    *version, real = done.stdout.rstrip("\n").split(" ", 3)
    return tuple(map(int, version)), real


def cached(key: bytes, install: Callable[[Path, float], None]) -> Path:
    """Return the directory for `key`; `install(directory, deadline)` fills it if it is not there.

    Raises:
        Unavailable: it could not be filled.
    """
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


def run(deadline: float, directory: Path, *command: str) -> None:
    """Run one step of an installation until `deadline`, on the monotonic clock, at most.

    Raises:
        Unavailable: it failed, or was not done in time.
    """
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
