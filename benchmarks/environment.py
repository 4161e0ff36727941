"""Describe the machine and the versions that figures belong to; ask Pythons what they have."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import ssl
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .peer import Peer

PACKAGES = "websocket-client simple-websocket wsproto websockets wsaccel msgpack grpcio"

# Seconds for an interpreter to start and look.
PATIENCE = 30.0


def cores() -> list[int]:
    """Return the cores this process may use; none where the system cannot tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def describe(peers: Sequence[Peer]) -> dict[str, Any]:
    """Return what a reader must know to compare the figures of ``peers`` with others."""
    import wsmux

    return {
        "machine": {
            "cpu": _cpu(),
            "cores": len(cores()) or os.cpu_count(),
            "architecture": platform.machine(),
            "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        },
        "load": os.getloadavg(),
        "system": platform.platform(),
        **versions(PACKAGES.split()),
        "openssl": ssl.OPENSSL_VERSION,
        "switch_interval": sys.getswitchinterval(),
        "wsmux": wsmux.__version__,
        "others": {
            peer.name: described(python, peer.needs)
            for peer in peers
            if peer.python_variable and (python := peer.python())
        },
    }


def lines(environment: dict[str, Any]) -> list[str]:
    """Return the same for people."""
    machine = environment["machine"]
    load = ", ".join(f"{value:.2f}" for value in environment["load"])
    where = f"{machine['cpu']}, {machine['cores']} cores, load {load}"
    python, ours = f"{environment['python']}, {environment['openssl']}", environment["wsmux"]
    return [
        f"{where}; {environment['system']}",
        f"{python}; wsmux {ours}, {_list(environment['packages'])}",
        *(
            f"{name}: {other['python']}; {_list(other['packages'])}"
            for name, other in environment["others"].items()
        ),
    ]


def _list(packages: dict[str, str]) -> str:
    return ", ".join(map(" ".join, packages.items()))


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if "model name" in line:
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# What a Python has: this file is also the program that another one runs to tell that.


def versions(packages: Sequence[str]) -> dict[str, Any]:
    """Return the versions of this Python and of those packages that are installed for it."""
    found = {}
    for name in packages:
        with suppress(PackageNotFoundError):  # a module may be named unlike its package
            found[name] = version(name)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {"python": python, "packages": found}


def missing(modules: Sequence[str]) -> str | None:
    """Return the first module that is not installed for this Python."""
    return next((name for name in modules if importlib.util.find_spec(name) is None), None)


def missing_module(python: str, modules: Sequence[str]) -> str | None:
    """Return the first module that is not installed for ``python``.

    Raises:
        OSError: there is no such Python, or it does not answer.
    """
    own = python == sys.executable
    answer: str | None = missing(modules) if own else _ask(python, "missing", modules)
    return answer


def described(python: str, packages: Sequence[str]) -> dict[str, Any]:
    """Return what ``versions`` does, of another Python."""
    told: dict[str, Any] = _ask(python, "versions", packages)
    return told


def _ask(python: str, function: str, names: Sequence[str]) -> Any:
    call = [python, "-c", Path(__file__).read_text(), function, *names]
    try:
        done = subprocess.run(call, capture_output=True, check=True, timeout=PATIENCE)
        return json.loads(done.stdout)
    except (ValueError, subprocess.SubprocessError) as error:
        raise OSError(f"{python} does not answer as a Python does") from error


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[sys.argv[1]](sys.argv[2:])))
