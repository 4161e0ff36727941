"""Describe errors in one line that survives Spark.

Spark ships only the text of a worker's traceback to the driver. So an error writes all its facts to
its last line, from which ``error_from`` restores them::

    wsmux.spark.errors.SparkError: [BAD] geo.lookup: no such place (partition=3 attempt=1)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ..exceptions import WsmuxError

__all__ = ["SparkError", "error_from", "hide", "one_line", "place", "shown_url"]

# Characters of a message that are kept: a server's text may have any length.
MOST_TEXT = 2000

_PAIR = r"[a-z_]+=[^\s()=]+"
_LINE = re.compile(
    rf"SparkError: \[(?P<code>[^\]\n]+)\] (?:(?P<what>[^\n:]*): )?(?P<message>[^\n]*?)"
    rf"(?: \((?P<place>{_PAIR}(?: {_PAIR})*)\))?$",
    re.MULTILINE,
)


# What Spark says of the format in its own words, with no trace of why.
_NOT_FOUND = re.compile(r"\[(DATA_SOURCE_NOT_FOUND)\][^\n]*\bwsmux\b")
_WHY = (
    "Spark did not find the format wsmux: the Python worker in which it looks formats up was "
    "killed, or has no wsmux; run it again after wsmux.spark.register(spark), and see that "
    "PYSPARK_PYTHON is a Python that has wsmux"
)


class SparkError(WsmuxError):
    """Report an error in a task, or while planning one.

    Attributes:
        code: the server's code, River's, or UNAUTHORIZED, NO_CONNECTION, TIMEOUT, WRONG_TYPE,
            CANNOT_SEND or BAD_ANSWER.
        message: a sentence.
        what: the procedure or stream.
        place: where it happened: ``url``, ``stage``, ``partition``, ``attempt``, ``inflight``.
    """

    def __init__(
        self,
        code: str,
        message: str,
        what: str = "",
        place: Mapping[str, Any] | None = None,
    ) -> None:
        self.code = one_line(code)
        self.message = one_line(message)
        self.what = one_line(what)
        self.place = dict(place or {})
        where = " ".join(f"{name}={_no_gaps(each)}" for name, each in self.place.items())
        text = f"{self.what}: {self.message}" if self.what else self.message
        super().__init__(f"[{self.code}] {text} ({where})" if where else f"[{self.code}] {text}")


def error_from(error: BaseException) -> SparkError | None:
    """Return the ``SparkError`` in the text of an exception of Spark, ``None`` if there is none.

    It takes the last one in the text of a ``PythonException``, ``AnalysisException``,
    ``StreamingQueryException`` or similar. The result has the same code, message and place, all as
    text. Spark's own DATA_SOURCE_NOT_FOUND for ``wsmux`` becomes one that says what to do.

    >>> text = "Traceback ...: wsmux.spark.errors.SparkError: [BAD] a.b: odd (partition=3)"
    >>> found = error_from(RuntimeError(text))
    >>> found.code, found.what, found.message, found.place
    ('BAD', 'a.b', 'odd', {'partition': '3'})
    """
    if isinstance(error, SparkError):
        return error
    found = list(_LINE.finditer(str(error)))
    if not found:
        unknown = _NOT_FOUND.search(str(error))
        return None if unknown is None else SparkError(unknown[1], _WHY, 'format("wsmux")')
    last = found[-1]
    pairs = (pair.partition("=") for pair in (last["place"] or "").split())
    where = {name: value for name, _, value in pairs}
    return SparkError(last["code"], last["message"], last["what"] or "", where)


def place(url: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the server and, inside a Spark task, its stage, partition and attempt."""
    found: dict[str, Any] = {} if url is None else {"url": shown_url(url)}
    # Without pyspark imported, this is not a Spark task.
    pyspark = sys.modules.get("pyspark")
    context = None if pyspark is None else pyspark.TaskContext.get()
    if context is not None:
        found["stage"] = context.stageId()
        found["partition"] = context.partitionId()
        found["attempt"] = context.attemptNumber()
    return found | more


def shown_url(url: str) -> str:
    """Return an address without its user, password and query, and without spaces."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return _no_gaps(f"{parts.scheme}://{host}{parts.path}")


def _no_gaps(value: object) -> str:
    """Return a value without characters that separate the pairs of a place."""
    return re.sub(r"[\s()=]", "_", str(value)) or "_"


def one_line(text: str) -> str:
    """Return a text on one line, shortened if it is long."""
    joined = " ".join(str(text).split())
    return joined if len(joined) <= MOST_TEXT else f"{joined[:MOST_TEXT]}..."


def hide(text: str, secret: str) -> str:
    """Return a text with a secret masked."""
    return text.replace(secret, "***") if secret else text
