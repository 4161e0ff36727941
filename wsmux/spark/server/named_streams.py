"""Serve streams by name: read the header, answer it, and call a handler.

A handler is a function of the stream and the header, called after the server's ``ok`` line. A
handler that may refuse streams is a ``NamedStream``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from ...mux.stream import Stream
from ...rpc import RiverError
from ...runtime.logs import logger
from ..protocol import (
    FAILED,
    FAILURE,
    Code,
    Request,
    encode_line,
    parse_line,
    read_line,
    refusal,
)
from ..store.base import DatasetStore, Part, Table, TopicStore
from ..store.filters import parse_filters
from .arrow_stream import ArrowSource, Limits, receive, send
from .services import guarded
from .stored_stream import send_stored

__all__ = ["Handler", "NamedStream", "NamedStreams", "ReadStream", "WriteStream", "refusal_line"]

Handler = Callable[[Stream, dict[str, Any]], object]

# Seconds to wait for the header of a stream.
HEADER_TIMEOUT = 10.0

_log = logger("wsmux.spark")


class NamedStream(ABC):
    """Serve the streams of one name, and refuse invalid ones.

    Attributes:
        told: what the ``ok`` line says beside that, as JSON.
    """

    told: Mapping[str, Any] = {}

    @abstractmethod
    def open(self, header: dict[str, Any]) -> Callable[[Stream], object]:
        """Return a function that serves a stream with this header, after the ``ok`` line.

        Raises:
            RiverError: the stream is refused; the client gets code and message.
        """


class NamedStreams:
    """Handle all streams of a server.

    Args:
        handlers: the handlers by name.
        timeout: seconds that one read or write of a stream may block.
    """

    def __init__(
        self, handlers: Mapping[str, Handler | NamedStream], timeout: float | None
    ) -> None:
        self._handlers = dict(handlers)
        self._timeout = timeout

    def __call__(self, stream: Stream) -> None:
        name = "a stream without a header"
        try:
            stream.timeout = HEADER_TIMEOUT
            try:
                header = parse_line(read_line(stream.readinto))
                name = f"stream {header.get('stream')!r:.150}"
                serve, told = guarded(self._find)(header)
            except RiverError as error:
                _log.info("%s is refused: %s", name, error)
                stream.write(refusal_line(error))
                return
            stream.timeout = self._timeout
            stream.write(encode_line({"ok": True, **told}))
            guarded(serve)(stream)
        except RiverError as error:
            _log.warning("%s failed: %s", name, error)
            stream.reset(FAILED)
        except TimeoutError as error:
            _log.info("%s timed out: %s", name, error)
            stream.reset(FAILED)

    def _find(self, header: dict[str, Any]) -> tuple[Callable[[Stream], object], Mapping[str, Any]]:
        """Return the function for a stream with this header, and what its ``ok`` line says."""
        name = Request(header).text("stream")
        handler = self._handlers.get(name)
        if handler is None:
            known = ", ".join(sorted(self._handlers))
            raise refusal(Code.NO_STREAM, f"there is no stream {name!r:.150}; there are {known}")
        if isinstance(handler, NamedStream):
            return handler.open(header), handler.told
        return lambda stream: handler(stream, header), {}


def refusal_line(error: RiverError) -> bytes:
    """Return the line that tells a client why it is refused."""
    return encode_line({"ok": False, "code": error.code, "message": error.message})


class ReadStream(NamedStream):
    """Send the rows of a dataset or a topic."""

    def __init__(
        self, datasets: DatasetStore | None, topics: TopicStore | None, limits: Limits
    ) -> None:
        self._datasets = datasets
        self._topics = topics
        self._limits = limits
        # What was written can be read; and files are passed on to those who ask for it.
        self.told = {"batch_bytes": limits.batch_bytes, "stored": True}

    def open(self, header: dict[str, Any]) -> Callable[[Stream], object]:
        # Nothing is read before the ``ok`` line: until the first row is found that may take longer
        # than a client waits for the line, as with filters.
        request = Request(header)
        table, empty, stored = self._table(request), request.flag("empty"), request.flag("stored")
        rows = table.stored if stored and table.stored is not None else table.batches
        write = send_stored if stored else send

        def serve(stream: Stream) -> None:
            try:
                guarded(write)(stream, table.schema, rows, self._limits, empty)
            except RiverError as error:
                _log.warning("a read failed: %s", error)
                stream.write(FAILURE + refusal_line(error))
            finally:
                if hasattr(rows, "close"):  # some iterators need no closing
                    rows.close()
            stream.close_write()

        return serve

    def _table(self, request: Request) -> Table:
        columns = request.texts("columns")
        if "token" in request and self._datasets is not None:
            filters = parse_filters(request.given("filters"))
            skip = request.whole("skip_rows", 0)
            return self._datasets.read(request.text("token"), skip, columns, filters)
        if "topic" in request and self._topics is not None:
            partition, start, end = (request.whole(n) for n in ("partition", "start", "end"))
            metadata = request.flag("metadata")
            topic = request.text("topic")
            more = {"home": request.text("home")} if "home" in request else {}
            return self._topics.read(topic, partition, start, end, columns, metadata, **more)
        raise refusal(Code.BAD_REQUEST, "read needs a token of a dataset, or a topic")


class WriteStream(NamedStream):
    """Stage one attempt at a partition, and answer with the receipt."""

    def __init__(
        self, datasets: DatasetStore | None, topics: TopicStore | None, limits: Limits
    ) -> None:
        self._stores = {"d": datasets, "t": topics}
        self._limits = limits

    def open(self, header: dict[str, Any]) -> Callable[[Stream], object]:
        request = Request(header)
        txn, partition = request.text("txn"), request.whole("partition")
        attempt = request.whole("attempt")
        store = self._stores.get(txn[:1])
        if store is None:
            raise refusal(Code.NO_TXN, f"there is no transaction {txn[:200]!r}")
        store.check_open(txn)

        def begin(schema: Any) -> Part:
            return store.open_part(txn, partition, attempt, schema)

        return lambda stream: self._serve(stream, begin)

    def _serve(self, stream: Stream, begin: Callable[[Any], Part]) -> None:
        try:
            receipt = guarded(self._stage)(stream, begin)
        except RiverError as error:
            _log.info("a part is refused: %s", error)
            stream.write(refusal_line(error))
            return
        stream.write(encode_line({"ok": True, **receipt.to_json()}))

    def _stage(self, stream: Stream, begin: Callable[[Any], Part]) -> Any:
        source = ArrowSource(stream, self._limits, summed=True)
        schema, batches = receive(source, self._limits)
        part = begin(schema)
        try:
            for batch in batches:
                part.write(batch)
            return part.finish(source.bytes, source.crc)
        finally:
            part.discard()
