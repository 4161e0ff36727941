"""Hold what figures of Spark are taken with: servers, near and far, and a session.

What is not always wanted begins when it is: bulk, a delay line, the session.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from wsmux.cli.spark_session import spark_session

from ..processes import Workers

# Task slots of the session.
TASKS = 2


class SparkClient(Workers):
    """Find servers at any distance.

    Args:
        near: the addresses of those that are always there, by their names.
    """

    def __init__(self, near: dict[str, str]) -> None:
        super().__init__()
        self._near = near

    def address(self, name: str, delay: int = 0) -> str:
        """Return where a server is: ``river``, ``raw``, or of bulk ``data`` or ``flight``.

        Args:
            delay: milliseconds of a round trip to it.
        """
        near = self._near.get(name) or self.worker("spark.bulk", "serve_bulk").told[name]
        line = ("spark.delayline", "delayed", near, delay / 1000)
        address: str = self.worker(*line).told if delay else near
        return address

    @cached_property
    def session(self) -> Any:
        """The session; everything is loaded and compiled that jobs need."""
        from .measures import warm_up

        session = self.enter_context(spark_session("benchmarks", TASKS))
        warm_up(session)
        return session
