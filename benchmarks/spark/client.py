"""Hold what figures of Spark are taken with: servers, near and far, and a session.

What is not always wanted begins when it is: bulk, a delay line, the session.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

from wsmux.cli.spark_session import spark_session

from ..processes import Worker

__all__ = ["TASKS", "SparkClient"]

# Task slots of the session.
TASKS = 2


class SparkClient:
    """Find servers at any distance.

    Args:
        told: the addresses of those that are always there, by their names, as JSON.
    """

    def __init__(self, told: str) -> None:
        self._addresses: dict[tuple[str, int], str] = {
            (name, 0): address for name, address in json.loads(told).items()
        }
        self._stack = ExitStack()
        self._session: Any = None

    def address(self, name: str, delay: int = 0) -> str:
        """Return where a server is: ``river``, ``raw``, or of bulk ``data`` or ``flight``.

        Args:
            delay: milliseconds of a round trip to it.
        """
        if (name, 0) not in self._addresses:
            bulk = self._stack.enter_context(Worker("spark.bulk"))
            self._addresses |= {(each, 0): url for each, url in bulk.told["addresses"].items()}
        if (name, delay) not in self._addresses:
            near = self._addresses[name, 0]
            line = self._stack.enter_context(Worker("spark.delayline", near, delay / 1000))
            self._addresses[name, delay] = line.told["address"]
        return self._addresses[name, delay]

    def session(self) -> Any:
        """Return the session; everything is loaded and compiled that jobs need."""
        if self._session is None:
            from .measures import warm_up

            self._session = self._stack.enter_context(spark_session("benchmarks", TASKS))
            warm_up(self._session)
        return self._session

    def close(self) -> None:
        """End all that was begun."""
        self._stack.close()
