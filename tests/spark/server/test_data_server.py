"""One port for calls and streams: who may come, what a stream is told, how it ends. No pyarrow."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import wsmux
from wsmux import rpc
from wsmux.diagnostics.status import Watched, document
from wsmux.exceptions import HandshakeError
from wsmux.rpc import RiverError
from wsmux.spark.protocol import FAILED, MAX_HEADER, Code, Receipt, refusal
from wsmux.spark.server.data_server import DataServer, serve_data
from wsmux.spark.server.named_streams import NamedStream
from wsmux.spark.store.base import (
    Begun,
    Committed,
    DatasetInfo,
    DatasetStore,
    Description,
    Part,
    Retention,
    Table,
)
from wsmux.spark.store.datasets import DeltaDatasets
from wsmux.spark.store.filters import Filter
from wsmux.spark.topics.sqlite_topics import SqliteTopics
from wsmux.testing import FaultProxy

from ...helpers.raw_peer import wait_for
from ...helpers.resumed import cut_off
from ...helpers.spark.clients import WAIT, bearer, open_named, open_with, read_line, refusal_of
from ...helpers.spark.inside import stores_of

KEY = "0" * 32


class NoDatasets(DatasetStore):
    """A store that holds nothing, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.swept = threading.Event()
        self.failure: Exception = refusal(Code.NO_DATASET, "there is none")

    def describe(
        self,
        dataset: str,
        partitions: int | None = None,
        columns: Sequence[str] | None = None,
        filters: Sequence[Filter] = (),
    ) -> Description:
        self.asked.append((dataset, partitions, columns, filters))
        raise self.failure

    def list(self) -> list[DatasetInfo]:
        return [DatasetInfo("a", 1, 2, 3), DatasetInfo("b", 0, 0, 0, "damaged")]

    def begin(
        self,
        dataset: str,
        mode: str,
        schema: Any,
        app: str | None = None,
        app_version: int | None = None,
    ) -> Begun:
        raise self.failure

    def check_open(self, txn: str) -> None:
        raise refusal(Code.NO_TXN, txn)

    def open_part(self, txn: str, partition: int, attempt: int, schema: Any) -> Part:
        raise self.failure

    def commit(self, txn: str, receipts: Sequence[Receipt]) -> Committed:
        self.asked.append(receipts)
        return Committed(1, 2, 3)

    def abort(self, txn: str) -> bool:
        return True

    def read(
        self,
        token: str,
        skip_rows: int = 0,
        columns: Sequence[str] | None = None,
        filters: Sequence[Filter] = (),
    ) -> Table:
        self.asked.append((token, skip_rows, columns, filters))
        raise self.failure

    def expire(self, now: float) -> None:
        self.swept.set()
        raise RuntimeError("a sweep that fails is followed by another")


class Picky(NamedStream):
    """Refuse all but one header."""

    def open(self, header: dict[str, Any]) -> Any:
        if header.get("word") != "please":
            raise refusal(Code.BAD_REQUEST, "say please")
        return lambda stream: stream.write(b"here you are")


def tail(stream: wsmux.Stream, header: dict[str, Any]) -> None:
    stream.write(str(header.get("what")).encode() + b":" + stream.read())


def fail(stream: wsmux.Stream, header: dict[str, Any]) -> None:
    stream.read(1)  # until then a reset would take the first line with it
    raise refusal(Code.CORRUPT, "in the middle")


service = rpc.Service("users")


@service.rpc()
def double(ctx: rpc.Context, init: int) -> int:
    return 2 * init


@pytest.fixture
def store() -> NoDatasets:
    return NoDatasets()


@pytest.fixture
def server(store: NoDatasets) -> Iterator[DataServer]:
    streams = {"tail": tail, "picky": Picky(), "fail": fail}
    with serve_data(datasets=store, services=[service], streams=streams, token="secret") as server:
        yield server


@pytest.fixture
def streams(server: DataServer) -> Iterator[wsmux.Connection]:
    with wsmux.connect(server.url, headers=bearer("secret"), timeout=WAIT) as connection:
        yield connection


@pytest.fixture
def calls(server: DataServer) -> Iterator[rpc.Client]:
    with rpc.connect(server.url, headers=bearer("secret")) as client:
        yield client


# One port, two conversations


def test_calls_and_streams_share_a_port(calls: rpc.Client, streams: wsmux.Connection) -> None:
    assert calls.rpc("users", "double", 21, WAIT) == 42
    with open_named(streams, "tail", what="x") as stream:
        assert read_line(stream) == {"ok": True}
        stream.write(b"data")
        stream.close_write()
        assert stream.read() == b"x:data"


def test_both_are_shown_on_a_live_page(
    server: DataServer, calls: rpc.Client, streams: wsmux.Connection
) -> None:
    calls.wait_connected(WAIT)
    wait_for(lambda: server.connections)
    told = document(Watched(server, sessions=True).sources(), 1.0)
    assert [each["client_id"] for each in told["sessions"]] == [calls.client_id]
    assert [each["name"] for each in told["connections"]] == [server.connections[0].name]


def test_another_subprotocol_is_refused(server: DataServer) -> None:
    with pytest.raises(HandshakeError, match=r"this address serves wsmux\.v1") as caught:
        wsmux.connect(server.url, protocol="yamux", headers=bearer("secret"), timeout=WAIT)
    assert caught.value.status == 400


@pytest.mark.parametrize("headers", [{}, bearer("wrong")], ids=["none", "wrong"])
def test_without_the_token_nobody_comes(server: DataServer, headers: dict[str, str]) -> None:
    with pytest.raises(HandshakeError, match="token") as caught:
        wsmux.connect(server.url, headers=headers, timeout=WAIT)
    assert caught.value.status == 401


def test_a_refusal_names_the_scheme(server: DataServer) -> None:
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=WAIT)
    key = {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version": "13"}
    connection.request("GET", "/", headers={"Connection": "Upgrade", "Upgrade": "websocket", **key})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert answer.read() == b"a token is required: Authorization: Bearer TOKEN\n"
    connection.close()


def test_an_expired_token_is_told_of() -> None:
    def check(token: str) -> str:
        raise PermissionError("this token expired on Monday")

    with (
        serve_data(datasets=NoDatasets(), token=check) as server,
        pytest.raises(HandshakeError, match="this token expired on Monday") as caught,
    ):
        wsmux.connect(server.url, headers=bearer("old"), timeout=WAIT)
    assert caught.value.status == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_need_a_token(host: str) -> None:
    with pytest.raises(ValueError, match="a token is required"):
        serve_data(host=host)


def test_names_of_the_server_are_taken() -> None:
    with pytest.raises(ValueError, match="'read' is reserved"):
        serve_data(streams={"read": tail})
    with pytest.raises(ValueError, match="'dataset'"):
        serve_data(services=[rpc.Service("dataset")])


def test_a_directory_and_stores_exclude_each_other(store: NoDatasets) -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        serve_data("/nowhere", datasets=store)
    with pytest.raises(ValueError, match="ttl"):
        serve_data(datasets=store, ttl=3.0)


@pytest.mark.spark
def test_a_directory_goes_with_topics_of_ones_own(tmp_path: Path) -> None:
    topics = SqliteTopics(tmp_path / "topics")
    with serve_data(tmp_path / "data", topics=topics, ttl=3.0) as server:
        datasets, own = stores_of(server)
        assert own is topics
        assert isinstance(datasets, DeltaDatasets)
    assert not (tmp_path / "data" / "topics.sqlite").exists()
    with pytest.raises(ValueError, match="retention: set it on your own topics"):
        serve_data(tmp_path / "data", topics=topics, retention=Retention(rows=1))


# Headers

BAD_HEADERS = {
    "no newline": (b'{"stream":"tail"}', "BAD_HEADER"),
    "nothing": (b"", "BAD_HEADER"),
    "garbage": (b"\x00\xff\n", "BAD_HEADER"),
    "huge": (b"x" * 2 * MAX_HEADER, "BAD_HEADER"),
    "huge line": (b'{"stream":"' + b"x" * 2 * MAX_HEADER + b'"}\n', "BAD_HEADER"),
    "list": (b"[]\n", "BAD_HEADER"),
    "no name": (b"{}\n", "BAD_REQUEST"),
    "number": (b'{"stream":1}\n', "BAD_REQUEST"),
    "unknown": (b'{"stream":"nothing"}\n', "NO_STREAM"),
    "refused": (b'{"stream":"picky"}\n', "BAD_REQUEST"),
    "read nothing": (b'{"stream":"read"}\n', "BAD_REQUEST"),
    "read topic": (b'{"stream":"read","topic":"t"}\n', "BAD_REQUEST"),
    "read token": (b'{"stream":"read","token":7}\n', "BAD_REQUEST"),
    "read skip": (b'{"stream":"read","token":"x","skip_rows":-1}\n', "BAD_REQUEST"),
    "read columns": (b'{"stream":"read","token":"x","columns":"a"}\n', "BAD_REQUEST"),
    "read filters": (b'{"stream":"read","token":"x","filters":[["a","~",1]]}\n', "BAD_FILTER"),
    "write nothing": (b'{"stream":"write"}\n', "BAD_REQUEST"),
    "write txn": (b'{"stream":"write","txn":"x","partition":0,"attempt":0}\n', "NO_TXN"),
    "write topic": (b'{"stream":"write","txn":"t:x","partition":0,"attempt":0}\n', "NO_TXN"),
    "write partition": (b'{"stream":"write","txn":"d:x","partition":-1}\n', "BAD_REQUEST"),
}


@pytest.mark.parametrize(("header", "code"), BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_bad_header_is_refused(streams: wsmux.Connection, header: bytes, code: str) -> None:
    stream = streams.open_stream(timeout=WAIT)
    stream.timeout = WAIT
    try:
        stream.write(header)
    except wsmux.StreamWriteClosed:
        pass  # refused while it was sent
    else:
        stream.close_write()
    assert refusal_of(stream) == code
    stream.close()


def test_a_handler_may_refuse(streams: wsmux.Connection) -> None:
    with open_named(streams, "picky", word="please") as stream:
        assert read_line(stream) == {"ok": True}
        assert stream.read() == b"here you are"
    with open_named(streams, "picky") as stream:
        assert read_line(stream)["message"] == "say please"


def test_what_fails_later_is_cut_with_a_code(streams: wsmux.Connection) -> None:
    with open_named(streams, "fail") as stream:
        assert read_line(stream) == {"ok": True}
        stream.write(b"x")
        with pytest.raises(wsmux.StreamReset) as caught:
            stream.read()
    assert caught.value.code == FAILED


def test_bytes_behind_the_header_are_the_handlers(streams: wsmux.Connection) -> None:
    with open_with(streams, b'{"stream":"tail"}\nmore\nand more') as stream:
        stream.close_write()
        assert stream.read() == b'{"ok":true}\nNone:more\nand more'


@pytest.mark.parametrize("name", ["optimize", "vacuum", "history"])
def test_a_store_need_not_keep_tables(calls: rpc.Client, name: str) -> None:
    with pytest.raises(rpc.RiverError, match=f"NoDatasets keeps .* no {name}") as caught:
        calls.rpc("dataset", name, {"dataset": "d"}, WAIT)
    assert caught.value.code == "BAD_REQUEST"


def test_what_the_system_refuses_has_a_code(
    store: NoDatasets, calls: rpc.Client, streams: wsmux.Connection
) -> None:
    store.failure = OSError(28, "No space left on device", "parts/x")
    with pytest.raises(RiverError, match="No space left on device: parts/x") as caught:
        calls.rpc("dataset", "describe", {"dataset": "a"}, WAIT)
    assert caught.value.code == "STORE_FAILED"
    with open_named(streams, "read", token="x") as stream:
        assert refusal_of(stream) == "STORE_FAILED"


# Calls


def test_a_store_is_asked_what_was_asked(store: NoDatasets, calls: rpc.Client) -> None:
    init = {"dataset": "a", "partitions": 3, "columns": ["x"], "filters": [["x", "=", 1]]}
    with pytest.raises(RiverError, match="there is none") as caught:
        calls.rpc("dataset", "describe", init, WAIT)
    assert caught.value.code == "NO_DATASET"
    assert store.asked == [("a", 3, ["x"], [Filter("x", "=", 1)])]


def test_a_list_tells_of_what_is_damaged(calls: rpc.Client) -> None:
    a, b = calls.rpc("dataset", "list", {}, WAIT)["datasets"]
    assert a == {"name": "a", "version": 1, "rows": 2, "bytes": 3}
    assert b == {"name": "b", "version": 0, "rows": 0, "bytes": 0, "error": "damaged"}


BAD_CALLS: dict[str, tuple[str, Any, str]] = {
    "no dataset": ("describe", {}, "BAD_REQUEST"),
    "dataset": ("describe", {"dataset": 7}, "BAD_REQUEST"),
    "partitions": ("describe", {"dataset": "a", "partitions": 0}, "BAD_REQUEST"),
    "many partitions": ("describe", {"dataset": "a", "partitions": 10**6}, "BAD_REQUEST"),
    "columns": ("describe", {"dataset": "a", "columns": "x"}, "BAD_REQUEST"),
    "filters": ("describe", {"dataset": "a", "filters": "x"}, "BAD_FILTER"),
    "no schema": ("begin", {"dataset": "a", "mode": "append"}, "BAD_REQUEST"),
    "no txn": ("commit", {"receipts": []}, "BAD_REQUEST"),
    "no receipts": ("commit", {"txn": "d:a:" + KEY}, "WRONG_RECEIPT"),
    "receipts": ("commit", {"txn": "d:a:" + KEY, "receipts": [1]}, "WRONG_RECEIPT"),
    "abort": ("abort", {}, "BAD_REQUEST"),
    "no object": ("abort", [], "INVALID_REQUEST"),
}


@pytest.mark.parametrize(("procedure", "init", "code"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_bad_call_has_its_code(calls: rpc.Client, procedure: str, init: Any, code: str) -> None:
    with pytest.raises(RiverError) as caught:
        calls.rpc("dataset", procedure, init, WAIT)
    assert caught.value.code == code


# The end


def test_stores_are_swept_again_and_again(store: NoDatasets) -> None:
    with serve_data(datasets=store, sweep=0.01):
        for _ in range(2):
            assert store.swept.wait(WAIT)
            store.swept.clear()


def test_shutdown_ends_both_conversations(store: NoDatasets) -> None:
    with (
        serve_data(datasets=store, services=[service]) as server,
        rpc.connect(server.url) as client,
        wsmux.connect(server.url, timeout=WAIT) as connection,
    ):
        assert client.rpc("users", "double", 1, WAIT) == 2
        server.shutdown(0.0)
        assert connection.wait_closed(WAIT)
        assert server.connections == []
        with pytest.raises(OSError, match="refused"):
            wsmux.connect(server.url, timeout=WAIT)


def test_processes_may_share_a_port(store: NoDatasets) -> None:
    with serve_data(datasets=store, shared=True) as one:
        with serve_data(datasets=store, port=one.port, shared=True) as other:
            assert other.port == one.port
        with wsmux.connect(one.url, timeout=WAIT) as connection:
            assert not connection.closed
        with pytest.raises(OSError, match="in use"):
            serve_data(datasets=store, port=one.port)


@pytest.mark.parametrize("origins", ["https://*.example.org", ["https://*.example.org"]])
def test_wrong_origins_are_refused_and_nothing_runs_on(origins: Any) -> None:
    before = set(threading.enumerate())
    with pytest.raises((TypeError, ValueError), match="origin"):
        serve_data(datasets=NoDatasets(), origins=origins)
    wait_for(lambda: set(threading.enumerate()) <= before, "the threads of calls to end")


def test_shutdown_gives_up_a_client_that_is_cut_off(store: NoDatasets) -> None:
    with (
        serve_data(datasets=store, resume=True) as server,
        FaultProxy(server.port) as proxy,
        wsmux.connect(proxy.url, resume=True) as client,
    ):
        assert client.resumable
        wait_for(lambda: server.connections)
        (connection,) = server.connections
        cut_off(proxy, connection)
        server.shutdown(WAIT)
        assert isinstance(connection.error, wsmux.ResumeLost)
        assert connection.error.why == "the server shuts down"
        client.abort()


def test_connections_are_resumed_only_if_the_server_is_told_to(store: NoDatasets) -> None:
    with (
        serve_data(datasets=store) as server,
        wsmux.connect(server.url, resume=True) as client,
    ):
        assert not client.resumable
