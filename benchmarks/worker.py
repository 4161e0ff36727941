"""Hold something in a process of its own: a client, a server, or what stands beside them.

``processes.py`` starts it and talks to it in lines of JSON. A context manager yields what is to be
told, or a function that answers questions. Either lasts until stdin ends.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .measures import EVERY_MEASURE
from .peers import find_peers


def main(core: int | None, module: str, name: str, *arguments: Any) -> None:
    """Run a context manager of this package, on one core if that is named."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends stdin
    if core is not None:
        os.sched_setaffinity(0, {core})  # before there are threads: they inherit it
    manager = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    with manager(*arguments) as held:
        _say(None if callable(held) else held)
        for line in sys.stdin:
            try:
                _say(held(**json.loads(line)))
            except Exception as error:
                _say(error=f"{type(error).__name__}: {str(error)[:500]}")


@contextmanager
def server(name: str) -> Iterator[Any]:
    """Serve as a variant does; yield the address."""
    peer = find_peers()[name]
    peer.check()
    with peer.serve() as address:
        yield address


@contextmanager
def client(name: str, address: Any) -> Iterator[Callable[..., float]]:
    """Connect as a variant does; yield what takes figures."""
    peer, known = find_peers()[name], dict[str, float]()
    peer.check()
    with peer.connect(address) as measuring:
        yield lambda measure, seconds: EVERY_MEASURE[measure].run(measuring, seconds, known)


def _say(value: Any = None, **more: Any) -> None:
    """Report to the process that started this one."""
    sys.stdout.write(json.dumps({"value": value, **more}) + "\n")
    sys.stdout.flush()
