"""Describe the machine and the versions that figures belong to."""

from __future__ import annotations

import os
import platform
import ssl
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .interpreters import described
from .peer import Peer
from .processes import cores

__all__ = ["describe", "lines"]

PACKAGES = (
    *("websocket-client", "simple-websocket", "wsproto", "websockets", "wsaccel", "msgpack"),
    *("grpcio", "paramiko"),
)


def describe(peers: Sequence[Peer]) -> dict[str, Any]:
    """Return what a reader must know to compare the figures of ``peers`` with others."""
    import wsmux

    return {
        "machine": {
            "cpu": _cpu(),
            "cores": len(cores()) or os.cpu_count(),
            "architecture": platform.machine(),
            "memory_gib": _memory_gib(),
        },
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "openssl": ssl.OPENSSL_VERSION,
        "switch_interval": sys.getswitchinterval(),
        "wsmux": wsmux.__version__,
        "packages": {package: _version(package) for package in PACKAGES},
        "others": {
            peer.name: described(peer.python, peer.needs)
            for peer in peers
            if peer.python_variable and peer.python
        },
    }


def lines(environment: dict[str, Any]) -> list[str]:
    """Return the same for people."""
    machine = environment["machine"]
    load = ", ".join(f"{value:.2f}" for value in environment["load"] or ())
    return [
        f"{machine['cpu']}, {machine['cores']} cores, load {load or 'unknown'}; "
        f"{environment['system']}",
        f"{environment['python']}, {environment['openssl']}; wsmux {environment['wsmux']}, "
        f"{_list(environment['packages'])}",
        *(
            f"{name}: {other['python']}; {_list(other['packages'])}"
            for name, other in environment["others"].items()
        ),
    ]


def _list(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {number or '-'}" for name, number in packages.items())


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def _memory_gib() -> int:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return round(pages / 1024**3)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
