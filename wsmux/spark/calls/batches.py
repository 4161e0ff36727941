"""Define messages that carry many rows, and make procedures that accept them.

A message of rows is ``{"$rows": [...]}``, with ``"$keys": [...]`` if rows have keys. The answer is
``{"$values": [...]}``: a value for each row, in order, null for rows that failed. Their errors are
in ``"$errors": [[row, code, message, extra], ...]``, with rows counted from 0; the field may be
missing if there are none. A row thus costs no more than its value, and any River server can take
part: in TypeScript such a procedure is a loop.

The answer to a message of no rows may tell the type of all values in Spark's DDL, as in
``{"$values": [], "$type": "bigint"}``: a column of them then has it. Who sends single rows asks the
procedure of the same name with ``$type`` behind it for that answer, since a procedure that is not
made for messages of rows would take such a message for a row.

A key identifies a row permanently: work repeated under the same key should take effect once. Calls
that are repeated after an error carry the same keys, and ``Deduplicator`` answers them with the
first result for as long as it remembers that. A request of an upload whose rows have keys is
``{"$row": row, "$key": key}``.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ...rpc import Context, Err, RiverError
from ...runtime.logs import logger
from ...runtime.parking import OneShotEvent
from ..ddl import Ddl, parse
from .result_types import annotated_type, schema_type

__all__ = [
    "TYPE",
    "Answers",
    "Deduplicator",
    "NotAnswers",
    "arrow_batches",
    "batched",
    "keyed_row",
    "read_answers",
    "read_type",
    "rows_message",
]

ROWS, KEYS, VALUES, ERRORS, TYPE = "$rows", "$keys", "$values", "$errors", "$type"
ROW, KEY = "$row", "$key"

# River's codes for undeclared errors and for values that a schema forbids, and what the caller is
# told of them.
UNCAUGHT_ERROR, FAILED = "UNCAUGHT_ERROR", "the handler failed"
INVALID_REQUEST = "INVALID_REQUEST"

# Default bounds of a deduplicator: a million rows of a few hundred bytes are as much memory as a
# server can spare, and no job retries for longer than an hour.
REMEMBERED, SECONDS = 1_000_000, 3600.0

_log = logger("wsmux.spark")

Value = TypeVar("Value")
Handler = Callable[[Context, Any], Any]


# Client side


def rows_message(rows: Sequence[Any], keys: Sequence[Any] | None = None) -> dict[str, Any]:
    """Return the message that carries rows."""
    return {ROWS: rows} if keys is None else {ROWS: rows, KEYS: keys}


def keyed_row(row: Any, key: Any) -> dict[str, Any]:
    """Return the request of an upload that carries a row with its key."""
    return {ROW: row, KEY: key}


class Answers(NamedTuple):
    """Hold the results of the rows of a message, in order, and their errors by row."""

    values: list[Any]
    errors: dict[int, RiverError]


class NotAnswers(ValueError):
    """Report an answer that is not a valid answer to a message of rows."""


def read_answers(answer: Any, count: int) -> Answers:
    """Parse the answer to a message of ``count`` rows.

    Raises:
        NotAnswers: it is malformed, or for another number of rows.
    """
    if not isinstance(answer, Mapping) or not isinstance(answer.get(VALUES), list):
        raise NotAnswers(f"the answer to a message of rows must be an object with {VALUES}")
    values = answer[VALUES]
    if len(values) != count:
        raise NotAnswers(f"{count} rows were answered with {len(values)} values")
    listed = answer.get(ERRORS) or []
    try:
        errors = {int(row): RiverError(code, text, *more[:1]) for row, code, text, *more in listed}
    except (TypeError, ValueError) as error:
        raise NotAnswers(f"{ERRORS} must list rows, codes and messages") from error
    if not all(0 <= row < count and isinstance(e.code, str) for row, e in errors.items()):
        raise NotAnswers(f"{ERRORS} names a row that was not sent, or a code that is not a string")
    return Answers(values, errors)


def read_type(answer: Any) -> Ddl | None:
    """Parse the answer to a message of no rows; return the type that it tells, if any.

    Raises:
        NotAnswers: it is malformed.
    """
    read_answers(answer, 0)
    told = answer.get(TYPE)
    if told is None:
        return None
    try:
        return parse(str(told))
    except ValueError as error:
        raise NotAnswers(f"{TYPE} must tell a type of Spark's: {error}") from error


# Server side


class _Message:
    """The schema of one row, or of its result, that lets messages of many pass.

    The handler checks their rows one by one, so that one that is refused refuses no other.

    Args:
        schema: a schema of ``wsmux.rpc``, whose place it takes.
        field: the field that messages of many have.
    """

    def __init__(self, schema: Any, field: str) -> None:
        self._schema = schema
        self._field = field

    @property
    def json(self) -> Any:
        """Return the schema of one as JSON data."""
        return self._schema.json

    def check(self, value: Any) -> dict[str, Any] | None:
        """Return what is wrong with a message, as the schema does."""
        if isinstance(value, Mapping) and isinstance(value.get(self._field), list):
            return None
        return self.check_row(value)

    def check_row(self, value: Any) -> dict[str, Any] | None:
        """Return what is wrong with a row, as the schema does."""
        wrong: dict[str, Any] | None = self._schema.check(value)
        return wrong


def batched(
    handler: Handler | None = None,
    *,
    whole: bool = False,
    deduplicator: Deduplicator | None = None,
) -> Any:
    """Make a procedure that accepts many rows from a function of one: ``handler(ctx, row)``.

    Put it below the decorator of the service. An error affects only its row: a ``RiverError`` is
    sent as it is, declared or not, any other exception as UNCAUGHT_ERROR. The rows of one message
    are handled one after another, messages concurrently. A caller that sends anything but a message
    of rows calls the function for that one row, and gets a plain answer.

    Schemas given to the decorator of the service, and annotations of the function, are of one row
    and its result. A row that the schema of the init forbids is answered with INVALID_REQUEST.
    ``.columns()`` makes a column of the type that the schema of the response allows, or else of
    the one that the function is annotated to return.

    Args:
        handler: the function.
        whole: it takes a list of rows and returns as many results, ``rpc.Err`` for rows that
            failed.
        deduplicator: answers rows whose keys it remembers; cannot be combined with ``whole``.

    >>> from wsmux.rpc import Service
    >>> geo = Service("geo", state={"10.0.0.1": "office"})
    >>> @geo.rpc()
    ... @batched
    ... def lookup(ctx, ip):
    ...     return ctx.state[ip]
    """
    if whole and deduplicator is not None:
        raise ValueError("whole=True and a deduplicator exclude each other")
    if handler is None:
        return functools.partial(batched, whole=whole, deduplicator=deduplicator)
    handle = handler
    schemas: dict[tuple[str, str], tuple[_Message | None, Ddl | None]] = {}
    annotated = annotated_type(handler, whole)

    def adapt_schemas(
        service: str, procedure: str, init: Any, response: Any
    ) -> tuple[_Message, _Message]:
        row = _Message(init, ROWS)
        checked = None if init.json in ({}, True) else row
        schemas[service, procedure] = checked, schema_type(response.json) or annotated
        return row, _Message(response, VALUES)

    @functools.wraps(handle)
    def answer(ctx: Context, init: Any) -> Any:
        rows = init.get(ROWS) if isinstance(init, Mapping) else None
        if not isinstance(rows, list):
            return _alone(handle, ctx, init) if whole else handle(ctx, init)
        row, kind = schemas.get((ctx.service, ctx.procedure), (None, annotated))
        if not rows:
            return _told(kind)
        refused = {} if row is None else _refused(row, rows)
        kept = [each for at, each in enumerate(rows) if at not in refused] if refused else rows
        if whole:
            results = _checked(handle(ctx, kept), len(kept)) if kept else []
        elif deduplicator is None or not _are_keys(keys := init.get(KEYS), rows):
            results = _results(handle, ctx, kept)
        else:
            keyed = [
                pair for at, pair in enumerate(zip(keys, rows, strict=True)) if at not in refused
            ]
            results = _results(deduplicator.wrap(handle), ctx, keyed)
        return _answer(_merged(results, refused))

    def tell_type(ctx: Context, init: Any) -> dict[str, Any]:
        known = schemas.get((ctx.service, ctx.procedure.removesuffix(TYPE)), (None, annotated))
        return _told(known[1])

    answer.adapt_schemas = adapt_schemas  # type: ignore[attr-defined]
    answer.asides = {TYPE: tell_type}  # type: ignore[attr-defined]
    return answer


def _told(kind: Ddl | None) -> dict[str, Any]:
    """Return the answer to a message of no rows."""
    return {VALUES: [], TYPE: str(kind)} if kind else {VALUES: []}


def _are_keys(keys: Any, rows: list[Any]) -> bool:
    return isinstance(keys, list) and len(keys) == len(rows)


def _refused(row: _Message, rows: list[Any]) -> dict[int, RiverError]:
    """Return the errors of rows that their schema forbids."""
    found = ((at, row.check_row(each)) for at, each in enumerate(rows))
    return {at: _forbidden(wrong) for at, wrong in found if wrong is not None}


def _forbidden(wrong: dict[str, Any]) -> RiverError:
    first = wrong["firstValidationErrors"][0]
    path = f"{first['path']} " if first["path"] else ""
    return RiverError(INVALID_REQUEST, f"the row failed validation: {path}{first['message']}")


def _merged(results: list[Any], refused: Mapping[int, RiverError]) -> list[Any]:
    """Return results with the errors of refused rows at their places."""
    for at in sorted(refused):
        results.insert(at, Err(refused[at]))
    return results


def _results(handle: Handler, ctx: Context, rows: list[Any]) -> list[Any]:
    """Return the function's result for each row, errors as ``Err``."""
    results: list[Any] = []
    over = ctx.ended.is_set
    for row in rows:
        if over():
            break  # the caller is gone
        try:
            results.append(handle(ctx, row))
        except RiverError as error:
            results.append(Err(error))
        except Exception:
            _log.exception("a row of %s.%s failed", ctx.service, ctx.procedure)
            results.append(Err(RiverError(UNCAUGHT_ERROR, FAILED)))
    return results


def _checked(results: Iterable[Any], count: int) -> list[Any]:
    listed = list(results)
    if len(listed) != count:
        raise ValueError(f"{count} rows were answered with {len(listed)} results")
    return listed


def _alone(handle: Handler, ctx: Context, row: Any) -> Any:
    (result,) = _checked(handle(ctx, [row]), 1)
    if type(result) is Err:
        raise result.error
    return result


def _answer(results: list[Any]) -> dict[str, Any]:
    if Err not in map(type, results):
        return {VALUES: results}
    errors = []
    for place, result in enumerate(results):
        if type(result) is Err:
            error = result.error
            more = [] if error.extra is None else [error.extra]
            errors.append([place, error.code, error.message, *more])
            results[place] = None
    return {VALUES: results, ERRORS: errors}


class Deduplicator:
    """Remember results by key, so that repeated work is not done again.

    A row that fails is not remembered. A caller with a key that is in progress waits for its
    result. Everything is in memory: other processes, or this one after a restart, do not have it.

    Args:
        keys: the number of keys to remember; the oldest are dropped first.
        seconds: how long to remember them.
        now: returns the time, in seconds.
    """

    def __init__(
        self,
        keys: int = REMEMBERED,
        seconds: float = SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = keys
        self._seconds = seconds
        self._now = now
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._running: dict[Hashable, OneShotEvent | None] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._known)

    def wrap(self, handle: Handler) -> Handler:
        """Return a function of a key and a row, ``handle(ctx, (key, row))``."""

        def once(ctx: Context, keyed: tuple[Any, Any]) -> Any:
            key, row = keyed
            return self.once(key, lambda: handle(ctx, row))

        return once

    def once(self, key: Any, action: Callable[[], Value]) -> Value:
        """Return the result of ``action`` for this key, computed now or before; ``None`` is no key.

        Blocks while another thread computes it.

        Raises:
            Exception: what ``action`` raises; it is not remembered.
            RiverError: BAD_KEY, for a key that is neither a string, a number nor bytes.
        """
        if key is None:
            return action()
        if not isinstance(key, str | int | float | bytes):
            raise RiverError("BAD_KEY", "a key must be a string, a number or bytes")
        while (found := self._begin(key)) is not None:
            running, value = found
            if running is None:
                known: Value = value
                return known
            running.wait()
        try:
            made = action()
        except BaseException:
            self._end(key)
            raise
        self._end(key, (self._now(), made))
        return made

    def fresh(self, requests: Iterable[Any]) -> Iterator[Any]:
        """Yield the rows of an upload whose keys were not processed before.

        A row counts as processed when the next one is requested.
        """
        for request in requests:
            keyed = isinstance(request, Mapping) and KEY in request
            key, row = (request[KEY], request.get(ROW)) if keyed else (None, request)
            if key is None:
                yield row
                continue
            while (found := self._begin(key)) is not None and found[0] is not None:
                found[0].wait()  # the other thread may fail, so check again
            if found is None:
                try:
                    yield row
                except BaseException:
                    self._end(key)
                    raise
                self._end(key, (self._now(), None))

    def _begin(self, key: Hashable) -> tuple[OneShotEvent | None, Any] | None:
        """Return an event to wait for, or a known result; ``None`` claims the key."""
        with self._lock:
            self._forget_locked()
            if key in self._known:
                return None, self._known[key][1]
            if key not in self._running:
                self._running[key] = None
                return None
            running = self._running[key]
            if running is None:
                running = self._running[key] = OneShotEvent()
            return running, None

    def _end(self, key: Hashable, known: tuple[float, Any] | None = None) -> None:
        with self._lock:
            waiting = self._running.pop(key)
            if known is not None:
                self._known[key] = known
                self._forget_locked()
        if waiting is not None:
            waiting.set()

    def _forget_locked(self) -> None:
        oldest = self._now() - self._seconds
        while self._known:
            key = next(iter(self._known))
            if len(self._known) <= self._most and self._known[key][0] > oldest:
                return
            del self._known[key]


def arrow_batches(handler: Handler) -> Handler:
    """Make a procedure for ``.arrow()`` from ``handler(ctx, batch)``.

    The function takes a ``pyarrow.RecordBatch`` and returns one, a table, or several batches.
    """

    @functools.wraps(handler)
    def answer(ctx: Context, init: Any) -> bytes:
        from .arrow import from_ipc, to_ipc

        (batch,) = from_ipc(init)
        return to_ipc(handler(ctx, batch))

    return answer
