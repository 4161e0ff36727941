"""One of the processes: a server, a delay line, a client, or a client within Spark.

``workers.py`` starts it and talks to it in lines of JSON. A server and a delay line tell their
addresses, and only wait for the end of stdin; the others measure what they are told.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack
from typing import Any

from wsmux.cli.spark_session import spark_session

from .row import NEAR, Place
from .rows import find_rows

__all__ = ["main"]

Addresses = dict[str, dict[str, str]]  # by distance, then by name


def main(role: str, argument: str = "{}") -> None:
    """Run until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends stdin
    given = json.loads(argument)
    if role == "server":
        _serve(bool(given["bulk"]))
    elif role == "delay":
        _delay(given)
    elif role == "spark":
        from .rows.jobs import TASKS, warm_up

        with spark_session("benchmarks", TASKS) as spark:
            warm_up(spark)
            _measure(given, spark)
    else:
        _measure(given, None)


def _serve(bulk: bool) -> None:
    from .server import serve

    with serve(bulk) as addresses:
        _say({"addresses": {NEAR: addresses}})
        sys.stdin.read()


def _delay(given: Addresses) -> None:
    """Put every address at every distance that is asked for."""
    from .delayline import delayed

    with ExitStack() as stack:
        addresses = {
            distance: {
                name: stack.enter_context(delayed(address, int(distance) / 1000))
                for name, address in near.items()
            }
            for distance, near in given.items()
        }
        _say({"addresses": addresses})
        sys.stdin.read()


def _measure(given: Addresses, spark: Any) -> None:
    _say({"ready": True})
    rows = find_rows()
    for line in sys.stdin:
        order = json.loads(line)
        place = Place(given[str(order["delay"])], spark)
        try:
            value = rows[order["row"]].measure(place, order["seconds"])
        except Exception as error:
            _say({"error": f"{type(error).__name__}: {str(error)[:500]}"})
        else:
            _say({"value": value})


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
