"""Serve stores as River services: ``dataset`` and ``topic``.

The table lists the fields of requests and responses; a schema is the bytes of an Arrow IPC message.
Errors are those of ``protocol.Code``.

==================  ==============================================  ===============================
procedure           init                                            response
==================  ==============================================  ===============================
dataset.describe    dataset, partitions?, columns?, filters?,       schema, version, rows, bytes,
                    version? or timestamp? (ms since 1970)          ranges: [{token, rows, bytes}]
dataset.list                                                        datasets: [{name, version,
                                                                    rows, bytes, error?}]
dataset.begin       dataset, mode, schema, app?, app_version?,      txn, done
                    merge_schema?, overwrite_schema?,
                    partition_by?, replace_where?
dataset.commit      txn, receipts                                   version, rows, bytes
dataset.abort       txn                                             committed
dataset.optimize    dataset, target_size? (bytes)                   version, files_removed,
                                                                    files_added, bytes_removed,
                                                                    bytes_added
dataset.vacuum      dataset, retention? (hours), dry_run?           files (the first 100,000),
                                                                    count, bytes
dataset.history     dataset, limit?                                 versions: [{version, time
                                                                    (ms since 1970), operation,
                                                                    parameters, metrics}]
topic.describe      topic                                           schema, partitions, earliest,
                                                                    latest, bytes, home
topic.create        topic, schema, partitions?                      created
topic.heads         topic                                           earliest, latest, bytes, home;
                    (a subscription)                                now and at each change
topic.offsets_at    topic, timestamp (ms since 1970)                offsets: for each partition,
                                                                    null if no row is so late
topic.begin         topic, query? and batch?, schema                txn, done
topic.commit        txn, receipts                                   version, rows, bytes
topic.abort         txn                                             committed
topic.release       topic, query, offsets, replaces?
==================  ==============================================  ===============================
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ...rpc import Context, ErrorSchema, RiverError, Service, Writable
from ..protocol import DATASET_SERVICE, TOPIC_SERVICE, Code, Request, receipts_of, refusal
from ..store.base import DatasetStore, TopicStore
from ..store.filters import parse_filters
from ..store.schemas import first_line, schema_bytes, schema_of

__all__ = ["DatasetService", "TopicService", "guarded"]

# Ranges of one answer, which must fit a message of 16 MiB.
MAX_RANGES = 100_000

# Seconds between checks whether a subscription has ended.
SLICE = 0.5

OBJECT = {"type": "object"}

ANYWHERE = (Code.BAD_REQUEST, Code.BAD_NAME, Code.CORRUPT, Code.BUSY, Code.STORE_FAILED)

Result = TypeVar("Result")


def guarded(handler: Callable[..., Result]) -> Callable[..., Result]:
    """Wrap a handler to turn errors of the system and of pyarrow into declared errors."""

    @functools.wraps(handler)
    def guard(*arguments: Any) -> Result:
        try:
            return handler(*arguments)
        except (RiverError, ConnectionError, TimeoutError):
            raise  # declared errors, and those of the stream itself
        except OSError as error:
            text = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
            raise refusal(Code.STORE_FAILED, text) from error
        except Exception as error:
            if not type(error).__module__.startswith("pyarrow"):
                raise
            text = f"pyarrow cannot process these values: {first_line(error)}"
            raise refusal(Code.STORE_FAILED, text) from error

    return guard


def _errors(*codes: Code) -> list[ErrorSchema]:
    return [ErrorSchema(code.value) for code in (*ANYWHERE, *codes)]


class _StoreService(Service):
    """Serve what all stores have."""

    store: DatasetStore | TopicStore

    def _add_rpc(self, handler: Callable[..., Any], errors: list[ErrorSchema]) -> None:
        self.rpc(init=OBJECT, response=OBJECT, errors=errors)(guarded(handler))

    def commit(self, ctx: Context, init: Mapping[str, Any]) -> dict[str, Any]:
        """Make staged parts visible."""
        txn = Request(init).text("txn")
        return self.store.commit(txn, receipts_of(init.get("receipts")))._asdict()

    def abort(self, ctx: Context, init: Mapping[str, Any]) -> dict[str, Any]:
        """Discard staged parts."""
        return {"committed": self.store.abort(Request(init).text("txn"))}


class DatasetService(_StoreService):
    """Serve a store of datasets.

    Args:
        store: the store; it is not closed.
    """

    def __init__(self, store: DatasetStore) -> None:
        super().__init__(DATASET_SERVICE, description="tables in versions")
        self.store: DatasetStore = store
        missing = (Code.NO_DATASET, Code.NO_COLUMN, Code.BAD_FILTER, Code.VERSION_GONE)
        refused = (Code.EXISTS, Code.WRONG_SCHEMA)
        self._add_rpc(self.describe, _errors(*missing))
        self._add_rpc(self.list, _errors())
        condition = (Code.NO_COLUMN, Code.BAD_FILTER)
        self._add_rpc(self.begin, _errors(*refused, *condition))
        committing = (Code.NO_TXN, Code.WRONG_RECEIPT, *refused, *condition)
        self._add_rpc(self.commit, _errors(*committing))
        self._add_rpc(self.abort, _errors(Code.NO_TXN))
        self._add_rpc(self.optimize, _errors(Code.NO_DATASET, Code.WRONG_SCHEMA))
        self._add_rpc(self.vacuum, _errors(Code.NO_DATASET, Code.WRONG_SCHEMA))
        self._add_rpc(self.history, _errors(Code.NO_DATASET))

    def describe(self, ctx: Context, init: Mapping[str, Any]) -> dict[str, Any]:
        """Return a version, the latest by default, split into ranges."""
        request = Request(init)
        partitions = request.whole("partitions", least=1) if "partitions" in request else None
        if partitions is not None and partitions > MAX_RANGES:
            raise refusal(Code.BAD_REQUEST, f"partitions may be up to {MAX_RANGES}")
        when: dict[str, Any] = {}
        if "version" in request:
            when["version"] = request.whole("version")
        if "timestamp" in request:
            when["timestamp"] = request.whole("timestamp") / 1000
        if len(when) > 1:
            raise refusal(Code.BAD_REQUEST, "version and timestamp exclude each other")
        told = self.store.describe(
            request.text("dataset"),
            partitions,
            request.texts("columns"),
            parse_filters(request.given("filters")),
            **when,
        )
        return {
            "schema": schema_bytes(told.schema),
            "version": told.version,
            "ranges": [each._asdict() for each in told.ranges],
            "rows": told.rows,
            "bytes": told.bytes,
        }

    def list(self, ctx: Context, init: Mapping[str, Any]) -> dict[str, Any]:
        """Return all datasets."""
        infos = [info._asdict() for info in self.store.list()]
        for info in infos:
            if info["error"] is None:
                del info["error"]
        return {"datasets": infos}

    def begin(self, ctx: Context, init: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a transaction."""
        request = Request(init)
        flags = ("merge_schema", "overwrite_schema")
        more: dict[str, Any] = {name: True for name in flags if request.given(name) is True}
        if "partition_by" in request:
            more["partition_by"] = request.texts("partition_by")
        if "replace_where" in request:
            more["replace_where"] = request.text("replace_where")
        begun = self.store.begin(
            request.text("dataset"),
            request.text("mode"),
            schema_of(request.raw("schema")),
            request.text("app") if "app" in request else None,
            request.whole("app_version") if "app_version" in request else None,
            **more,
        )
        return begun._asdict()

    def optimize(self, ctx: Context, init: Mapping[str, Any]) -> dict[str, Any]:
        """Join small files; the answer comes when it is done, however long that takes."""
        request = Request(init)
        target = request.whole("target_size", least=1) if "target_size" in request else None
        return self.store.optimize(request.text("dataset"), target)._asdict()

    def vacuum(self, ctx: Context, init: Mapping[str, Any]) -> dict[str, Any]:
        """Remove the files that no version within a time needs."""
        request = Request(init)
        hours = request.whole("retention") if "retention" in request else None
        dry = request.flag("dry_run")
        done = self.store.vacuum(request.text("dataset"), hours, dry_run=dry)
        told = done.files[:MAX_RANGES]
        return {"files": told, "count": len(done.files), "bytes": done.bytes}

    def history(self, ctx: Context, init: Mapping[str, Any]) -> dict[str, Any]:
        """Return the newest versions, the newest first."""
        request = Request(init)
        limit = request.whole("limit", least=1) if "limit" in request else None
        told = self.store.history(request.text("dataset"), limit)
        return {"versions": [each._asdict() | {"time": round(each.time * 1000)} for each in told]}


class TopicService(_StoreService):
    """Serve a store of topics.

    Args:
        store: the store; it is not closed.
    """

    def __init__(self, store: TopicStore) -> None:
        super().__init__(TOPIC_SERVICE, description="append-only partitions of rows")
        self.store: TopicStore = store
        self._add_rpc(self.describe, _errors(Code.NO_TOPIC))
        self._add_rpc(self.offsets_at, _errors(Code.NO_TOPIC))
        self._add_rpc(self.create, _errors(Code.EXISTS, Code.WRONG_SCHEMA))
        self._add_rpc(self.begin, _errors(Code.NO_TOPIC, Code.WRONG_SCHEMA))
        self._add_rpc(self.commit, _errors(Code.NO_TXN, Code.WRONG_RECEIPT))
        self._add_rpc(self.abort, _errors(Code.NO_TXN))
        self._add_rpc(self.release, _errors(Code.NO_TOPIC, Code.BAD_OFFSETS))
        self.subscription(init=OBJECT, response=OBJECT, errors=_errors(Code.NO_TOPIC))(
            guarded(self.heads)
        )

    def describe(self, ctx: Context, init: Mapping[str, Any]) -> dict[str, Any]:
        """Return the schema, partitions and offsets of a topic."""
        told = self.store.describe(Request(init).text("topic"))
        return {
            "schema": schema_bytes(told.schema),
            "partitions": told.partitions,
            **told.heads._asdict(),
        }

    def offsets_at(self, ctx: Context, init: Mapping[str, Any]) -> dict[str, Any]:
        """Return the first offsets whose rows came at a time or later."""
        request = Request(init)
        return {"offsets": self.store.offsets_at(request.text("topic"), request.whole("timestamp"))}

    def create(self, ctx: Context, init: Mapping[str, Any]) -> dict[str, Any]:
        """Create a topic."""
        request = Request(init)
        partitions = request.whole("partitions", least=1) if "partitions" in request else None
        schema = schema_of(request.raw("schema"))
        return {"created": self.store.create(request.text("topic"), schema, partitions)}

    def begin(self, ctx: Context, init: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a transaction for one batch of a query, or of its own."""
        request = Request(init)
        begun = self.store.begin(
            request.text("topic"),
            request.text("query") if "query" in request else None,
            request.whole("batch") if "batch" in request else None,
            schema_of(request.raw("schema")),
        )
        return begun._asdict()

    def release(self, ctx: Context, init: Mapping[str, Any]) -> dict[str, Any]:
        """Record the offsets below which a query needs no rows."""
        request = Request(init)
        more = {"replaces": request.text("replaces")} if "replaces" in request else {}
        topic, query = request.text("topic"), request.text("query")
        self.store.release(topic, query, request.wholes("offsets"), **more)
        return {}

    def heads(self, ctx: Context, init: Mapping[str, Any], responses: Writable[Any]) -> None:
        """Send the offsets of a topic, now and after changes; quick changes are combined."""
        topic, seen = Request(init).text("topic"), None
        while not ctx.ended.is_set():
            heads = self.store.wait_heads(topic, seen, SLICE)
            if heads != seen:
                responses.write(heads._asdict())
                seen = heads
