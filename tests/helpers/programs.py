"""Find what some tests need beside what ``[test]`` installs; skip them where it is not there.

``WSMUX_REQUIRE`` names what has to be there, so that a test without it fails: ``programs``,
``peers`` (the published implementations of ``tests/interop``) and ``spark``, with commas between.
CI sets it.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, NoReturn

import pytest

from wsmux.runtime.hints import how_to_install

__all__ = ["VARIABLE", "absent", "needs", "package", "required"]

VARIABLE = "WSMUX_REQUIRE"

# Debian's packages, where they are not called as the program is.
DEBIAN = {
    "cat": "coreutils",
    "ip": "iproute2",
    "node": "nodejs",
    "sh": "dash",
    "systemd-analyze": "systemd",
}


def required(what: str) -> bool:
    """Return whether a test without this has failed."""
    return what in os.environ.get(VARIABLE, "").split(",")


def absent(reason: str, what: str = "programs") -> NoReturn:
    """Skip the test that runs, or fail it where what it needs has to be there."""
    if required(what):
        pytest.fail(f"{VARIABLE} has {what}, but {reason}", pytrace=False)
    pytest.skip(reason)


def needs(program: str, *further: str) -> str:
    """Return the path of a program; skip the test that runs where it, or a further one, is not."""
    for name in (program, *further):
        if shutil.which(name) is None:
            absent(f"there is no {name} on the PATH (Debian: {DEBIAN.get(name, name)})")
    return str(shutil.which(program))


def package(name: str, extra: str) -> Any:
    """Import a module of an optional package; skip the test, or the whole module, without it."""
    return pytest.importorskip(name, reason=f"needs {name}: {how_to_install(extra)}")
