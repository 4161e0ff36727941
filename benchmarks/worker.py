"""The client or the server process of one variant.

``processes.py`` starts it and talks to it in lines of JSON: the server tells its address and then
only waits for the end of stdin; the client measures what it is told and answers with the figure.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from .measures import EVERY_MEASURE
from .peers import find_peers

__all__ = ["main", "say"]


def main(role: str, name: str, core: int | None, address: str = "") -> None:
    """Run until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends stdin
    if core is not None:
        os.sched_setaffinity(0, {core})  # before there are threads: they inherit it
    peer = find_peers()[name]
    peer.check()
    if role == "server":
        with peer.serve() as told:
            say(address=told)
            sys.stdin.read()
        return
    known: dict[str, float] = {}
    with peer.connect(address) as client:
        say()
        for line in sys.stdin:
            order = json.loads(line)
            try:
                value = EVERY_MEASURE[order["measure"]].run(client, order["seconds"], known)
            except Exception as error:
                say(error=f"{type(error).__name__}: {str(error)[:500]}")
            else:
                say(value=value)


def say(**what: Any) -> None:
    """Tell whoever started this process."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
