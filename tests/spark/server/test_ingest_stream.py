"""The server's half of ingest, as any client sees it: what it tells, refuses and bounds."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux.spark import DataServer, DatasetStore, GroupCommit, serve_data
from wsmux.spark.protocol import FAILURE
from wsmux.spark.store.base import IngestTarget

from ...helpers.spark.arrow_data import SCHEMA, ipc, pa, rows
from ...helpers.spark.bulk import schema_of
from ...helpers.spark.clients import WAIT, open_named, read_line, refusal_of
from ...helpers.spark.ingesting import Gated, held
from ...helpers.spark.inside import ingest_held
from ...helpers.waiting import wait_for

pytestmark = pytest.mark.spark

CREATE = base64.b64encode(schema_of(SCHEMA)).decode()
END = ipc(SCHEMA, [])[-8:]


@pytest.fixture
def store(tmp_path: Path) -> Gated:
    return Gated(tmp_path, sync=False)


@pytest.fixture
def server(store: DatasetStore) -> Iterator[DataServer]:
    bounds = GroupCommit(linger=0.001, client_bytes=64 * 1024)
    with serve_data(datasets=store, ingest=bounds) as made:
        yield made


@pytest.fixture
def connection(server: DataServer) -> Iterator[wsmux.Connection]:
    with wsmux.connect(server.url, timeout=WAIT) as made:
        yield made


def begin(connection: wsmux.Connection, **fields: Any) -> tuple[wsmux.Stream, Any]:
    """Open a stream; return it and what the server tells."""
    header = {"dataset": "d", "client": "~1", "session": "s", "create": CREATE, **fields}
    stream = open_named(connection, "ingest", **header)
    assert read_line(stream) == {"ok": True}
    return stream, read_line(stream)


def begun(connection: wsmux.Connection, **fields: Any) -> wsmux.Stream:
    stream, told = begin(connection, **fields)
    data = bytearray(told["schema"])
    assert stream.fill(data) == len(data)
    assert pa.ipc.read_schema(pa.py_buffer(bytes(data))).equals(SCHEMA)
    return stream


def failure(stream: wsmux.Stream) -> str:
    """Return the code of the failure that ends a stream."""
    data = bytearray(8)
    while stream.fill(data) == 8 and data != FAILURE:
        pass
    assert data == FAILURE
    return refusal_of(stream)


def offset(stream: wsmux.Stream) -> int:
    return int.from_bytes(stream.read(8), "big")


def test_what_is_told_at_first_and_of_what_is_durable(
    store: Gated, connection: wsmux.Connection
) -> None:
    stream, told = begin(connection)
    told.pop("schema")
    assert told == {
        "ok": True,
        "offset": 0,
        "session": "",
        "partition_by": [],
        "batch_bytes": 64 * 1024,
    }
    stream.reset()
    with begun(connection) as stream:
        whole = ipc(SCHEMA, [rows(0, 3), rows(3, 2)])
        stream.write(whole)
        stream.close_write()
        assert stream.readall()[-8:] == (5).to_bytes(8, "big")
    assert held(store) == [0, 1, 2, 3, 4]
    with begun(connection) as stream:
        stream.close_write()
    assert begin(connection, session="t")[1] | {"schema": 0} == {
        **told,
        "offset": 5,
        "session": "s",
        "schema": 0,
    }


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"dataset": "../x"}, "BAD_NAME"),
        ({"dataset": 7}, "BAD_REQUEST"),
        ({"client": ""}, "BAD_REQUEST"),
        ({"client": "x" * 201}, "BAD_REQUEST"),
        ({"client": "a\n"}, "BAD_REQUEST"),
        ({"session": None}, "BAD_REQUEST"),
        ({"session": "x" * 201}, "BAD_REQUEST"),
        ({"create": "?"}, "BAD_REQUEST"),
        ({"create": base64.b64encode(b"no schema").decode()}, "BAD_REQUEST"),
        ({"create": base64.b64encode(schema_of(pa.schema([]))).decode()}, "WRONG_SCHEMA"),
    ],
)
def test_a_bad_header_is_refused(
    connection: wsmux.Connection, fields: dict[str, Any], code: str
) -> None:
    header = {"dataset": "d", "client": "~1", "session": "s", "create": CREATE, **fields}
    with open_named(connection, "ingest", **header) as stream:
        assert refusal_of(stream) == code


def test_a_dataset_that_is_not_there_is_refused(connection: wsmux.Connection) -> None:
    stream, told = begin(connection, create=None)
    assert (told["ok"], told["code"], stream.read(1)) == (False, "NO_DATASET", b"")


OTHER = pa.schema([pa.field("id", pa.int64()), pa.field("word", pa.string())])


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"x" * 100, "BAD_ARROW"),
        (ipc(SCHEMA, [rows(0, 3)])[:-20] + b"x" * 20, "BAD_ARROW"),
        (ipc(OTHER, [rows(0, 3).cast(OTHER)]), "WRONG_SCHEMA"),
        (ipc(SCHEMA, [rows(0, 20_000)]), "TOO_LARGE"),
        (ipc(SCHEMA, [rows(0, 3)])[:-8] + END + b"more", "BAD_ARROW"),
    ],
)
def test_bad_rows_end_the_stream_with_a_code_and_hurt_no_other_client(
    store: Gated, connection: wsmux.Connection, data: bytes, code: str
) -> None:
    with begun(connection, client="~2") as other, begun(connection) as stream:
        with contextlib.suppress(wsmux.StreamWriteClosed):  # refused while it was sent
            stream.write(data)
        stream.close_write()
        assert failure(stream) == code
        other.write(ipc(SCHEMA, [rows(50, 1)])[:-8])
        assert offset(other) == 1
        other.write(END)
    assert held(store)[-1] == 50


def test_nulls_where_there_are_none_fail_their_client_alone(
    store: Gated, server: DataServer, connection: wsmux.Connection
) -> None:
    """A client that checks nothing, in one group with another one."""
    bad = pa.record_batch([pa.array([None], pa.int64()), pa.array(["x"])], SCHEMA)
    entered: list[Any] = []

    def hold(clients: Any) -> None:
        if not entered:
            entered.append(clients)
            wait_for(lambda: ingest_held(server).batches == 2)

    store.before = hold
    with (
        begun(connection, client="~1") as first,
        begun(connection, client="~2") as good,
        begun(connection, client="~3") as stream,
    ):
        first.write(ipc(SCHEMA, [rows(1, 1)])[:-8])
        wait_for(lambda: bool(entered))
        good.write(ipc(SCHEMA, [rows(2, 1)])[:-8])
        stream.write(ipc(SCHEMA, [bad])[:-8])
        assert failure(stream) == "BAD_ARROW"
        assert (offset(good), offset(first)) == (1, 1)
    assert held(store) == [1, 2]


def test_empty_batches_are_no_rows(store: Gated, connection: wsmux.Connection) -> None:
    with begun(connection) as stream:
        stream.write(ipc(SCHEMA, [rows(0, 0), rows(0, 1), rows(0, 0)]))
        stream.close_write()
        assert stream.readall() == (1).to_bytes(8, "big")
    assert store.groups == [["~1"]]


def test_a_client_that_has_gone_leaves_nothing_in_memory(
    store: Gated, server: DataServer, connection: wsmux.Connection
) -> None:
    stream = begun(connection)
    stream.write(ipc(SCHEMA, [rows(0, 100)])[:-100])  # a batch that is not whole
    wait_for(lambda: ingest_held(server).bytes > 0)
    stream.reset()
    wait_for(lambda: ingest_held(server) == (0, 0))


@pytest.mark.parametrize("options", [{"linger": 0}, {"group_bytes": 0}, {"table_bytes": 1}])
def test_bad_bounds_are_told(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"GroupCommit\.\w+ must"):
        GroupCommit(**options)


def test_a_store_that_takes_no_rows_of_ingest_says_so(tmp_path: Path) -> None:
    class Plain(Gated):
        def ingest_target(self, dataset: str, client: str) -> IngestTarget:
            return DatasetStore.ingest_target(self, dataset, client)

    with (
        serve_data(datasets=Plain(tmp_path)) as server,
        wsmux.connect(server.url, timeout=WAIT) as connection,
    ):
        _, told = begin(connection)
        assert (told["code"], "Plain" in told["message"]) == ("BAD_REQUEST", True)


def test_a_server_that_ends_leaves_its_clients_to_another_one(
    store: Gated, server: DataServer, connection: wsmux.Connection
) -> None:
    stream = begun(connection)
    server.shutdown(WAIT)  # and does not wait so long
    with pytest.raises(wsmux.WsmuxError):
        stream.read(1)
