"""The server's half of ingest, as any client sees it: what it tells, refuses and bounds."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux.spark import DataServer, DatasetStore, GroupCommit, serve_data
from wsmux.spark.ingest_messages import Messages
from wsmux.spark.protocol import INGEST_HEAD, Ingest, encode_line, ingest_message
from wsmux.spark.server import ingest_stream
from wsmux.spark.store.base import IngestTarget

from ...helpers.spark.arrow_data import SCHEMA, pa, rows
from ...helpers.spark.bulk import schema_of
from ...helpers.spark.clients import WAIT, open_named, read_line, refusal_of
from ...helpers.spark.ingesting import Gated, held, opened
from ...helpers.spark.inside import ingest_clients, ingest_held
from ...helpers.waiting import wait_for

pytestmark = pytest.mark.spark

CREATE = base64.b64encode(schema_of(SCHEMA)).decode()


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


class Channel:
    """The stream of some clients, each of which has a number."""

    def __init__(self, connection: wsmux.Connection, dataset: Any = "d") -> None:
        self.stream = open_named(connection, "ingest", dataset=dataset)
        self._messages = Messages(self.stream)
        self._numbers = itertools.count()

    def begin(self, **fields: Any) -> tuple[int, Any]:
        """Open a client; return its number and what the server tells."""
        number = next(self._numbers)
        told = {"client": f"~{number}", "session": "s", "create": CREATE, **fields}
        self.send(Ingest.OPEN, number, encode_line(told))
        kind, body = self.answer(number)
        assert kind in (Ingest.OPENED, Ingest.REFUSED)
        return number, json.loads(body)

    def begun(self, **fields: Any) -> int:
        number, told = self.begin(**fields)
        assert "offset" in told, told
        return number

    def send(self, kind: Ingest, number: int, body: Any = b"") -> None:
        self.stream.write(ingest_message(kind, number, body))

    def add(self, number: int, *batches: Any) -> None:
        for each in batches:
            self.send(Ingest.ROWS, number, each.serialize())

    def answer(self, number: int) -> tuple[int, bytes]:
        head = self._messages.head()
        assert head is not None
        assert head[1] == number
        return head[0], bytes(self._messages.body(head[2]))

    def offset(self, number: int) -> int:
        kind, body = self.answer(number)
        assert kind == Ingest.DURABLE, body
        return int.from_bytes(body, "little")

    def code(self, number: int) -> str:
        """Return the code with which a client is refused."""
        kind, body = self.answer(number)
        assert kind == Ingest.REFUSED
        told = json.loads(body)
        assert told["ok"] is False
        return str(told["code"])


@pytest.fixture
def channel(connection: wsmux.Connection) -> Channel:
    made = Channel(connection)
    assert read_line(made.stream) == {"ok": True}
    return made


def test_what_is_told_at_first_and_of_what_is_durable(store: Gated, channel: Channel) -> None:
    number, told = channel.begin(client="~1")
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told.pop("schema"))))
    assert schema.equals(SCHEMA)
    first = {"offset": 0, "session": "", "partition_by": [], "batch_bytes": 64 * 1024}
    assert told == first
    channel.add(number, rows(0, 3), rows(3, 2))
    while channel.offset(number) < 5:
        pass
    assert held(store) == [0, 1, 2, 3, 4]
    channel.send(Ingest.LEAVE, number)
    _, told = channel.begin(client="~2")  # the schema is not told again
    assert told == first
    assert channel.begin(client="~1", session="t")[1] == {**first, "offset": 5, "session": "s"}


def test_a_schema_that_is_another_by_now_is_told_again(store: Gated, channel: Channel) -> None:
    old = channel.begun()
    wider = pa.schema([*SCHEMA, pa.field("more", pa.int64())])
    store.commit(store.begin("d", "append", wider, merge_schema=True).txn, [])
    new, told = channel.begin()
    assert pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told["schema"]))).equals(wider)
    channel.add(old, rows(0, 1))
    assert channel.offset(old) == 1
    channel.add(new, rows(1, 1).append_column("more", pa.array([7])))
    assert channel.offset(new) == 1
    assert held(store) == [0, 1]


@pytest.mark.parametrize(("dataset", "code"), [("../x", "BAD_NAME"), (7, "BAD_REQUEST")])
def test_a_bad_header_is_refused(connection: wsmux.Connection, dataset: Any, code: str) -> None:
    with Channel(connection, dataset).stream as stream:
        assert refusal_of(stream) == code


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"client": ""}, "BAD_REQUEST"),
        ({"client": "x" * 201}, "BAD_REQUEST"),
        ({"client": "a\n"}, "BAD_REQUEST"),
        ({"session": None}, "BAD_REQUEST"),
        ({"session": "x" * 201}, "BAD_REQUEST"),
        ({"create": "?"}, "BAD_REQUEST"),
        ({"create": base64.b64encode(b"no schema").decode()}, "BAD_REQUEST"),
        ({"create": base64.b64encode(schema_of(pa.schema([]))).decode()}, "WRONG_SCHEMA"),
        ({"create": None}, "NO_DATASET"),
    ],
)
def test_a_client_that_cannot_be_let_in_is_refused_alone(
    channel: Channel, fields: dict[str, Any], code: str
) -> None:
    assert channel.begin(**fields)[1]["code"] == code
    other = channel.begun()
    channel.add(other, rows(0, 1))
    assert channel.offset(other) == 1


GOOD = rows(0, 3).serialize().to_pybytes()
OTHER = pa.record_batch({"id": [1]}).serialize().to_pybytes()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"x" * 104, "BAD_ARROW"),
        (b"", "BAD_ARROW"),
        (GOOD[:-8], "BAD_ARROW"),
        (GOOD + b"x" * 8, "BAD_ARROW"),
        (GOOD + b"x", "BAD_ARROW"),
        (GOOD[:8] + b"\xff" * 64 + GOOD[72:], "BAD_ARROW"),
        (GOOD[:-24] + b"\xff" * 24, "BAD_ARROW"),
        (OTHER, "BAD_ARROW"),
        (schema_of(SCHEMA), "BAD_ARROW"),
        (rows(0, 20_000).serialize().to_pybytes(), "TOO_LARGE"),
        (bytes(2 * 1024 * 1024), "TOO_LARGE"),
    ],
)
def test_bad_rows_refuse_their_client_with_a_code_and_hurt_no_other(
    store: Gated, channel: Channel, data: bytes, code: str
) -> None:
    bad, other = channel.begun(), channel.begun()
    channel.send(Ingest.ROWS, bad, data)
    channel.send(Ingest.ROWS, bad, GOOD)  # sent before it knows
    assert channel.code(bad) == code
    channel.add(other, rows(50, 1))
    assert channel.offset(other) == 1
    assert held(store) == [50]


def test_bad_rows_in_a_group_with_others_fail_their_client_alone(
    store: Gated, server: DataServer, channel: Channel
) -> None:
    """Clients that check nothing, in one group with another one."""
    null = pa.record_batch([pa.array([None], pa.int64()), pa.array(["x"])], SCHEMA)
    entered: list[Any] = []

    def hold(clients: Any) -> None:
        if not entered:
            entered.append(clients)
            wait_for(lambda: ingest_held(server).batches == 3)

    store.before = hold
    first, good, with_null, odd = (channel.begun() for _ in range(4))
    channel.add(first, rows(1, 1))
    wait_for(lambda: bool(entered))
    channel.add(good, rows(2, 1))
    channel.add(with_null, null)
    channel.send(Ingest.ROWS, odd, OTHER)
    assert channel.offset(first) == 1
    assert channel.offset(good) == 1
    assert channel.code(with_null) == "BAD_ARROW"
    assert channel.code(odd) == "BAD_ARROW"
    assert held(store) == [1, 2]


def test_what_is_durable_of_many_clients_is_told_at_once(
    store: Gated, server: DataServer, channel: Channel
) -> None:
    numbers = [channel.begun() for _ in range(20)]
    store.before = lambda clients: wait_for(lambda: len(clients) > 1 or ingest_held(server)[0] > 18)
    channel.stream.write(
        b"".join(ingest_message(Ingest.ROWS, n, rows(n, 1).serialize()) for n in numbers)
    )
    assert [channel.offset(number) for number in numbers] == [1] * 20
    assert len(store.groups) <= 2


@pytest.mark.parametrize(
    "data",
    [
        ingest_message(Ingest.DURABLE, 0, bytes(8)),
        ingest_message(Ingest.LEAVE, 0, b"x"),
        ingest_message(Ingest.OPEN, 0, b"{}\n"),  # a number that is in use
        INGEST_HEAD.pack(Ingest.OPEN, 1, 2**32 - 1),
        INGEST_HEAD.pack(99, 1, 0),
    ],
)
def test_what_is_no_message_ends_the_stream(channel: Channel, data: bytes) -> None:
    channel.begun()
    channel.stream.write(data)
    with pytest.raises(wsmux.StreamReset):
        channel.stream.read(1)


def test_a_stream_that_ends_within_a_message_leaves_nothing_in_memory(
    server: DataServer, channel: Channel
) -> None:
    number = channel.begun()
    channel.stream.write(ingest_message(Ingest.ROWS, number, GOOD)[:-100])
    wait_for(lambda: ingest_held(server).bytes > 0)
    channel.stream.close_write()
    wait_for(lambda: ingest_held(server) == (0, 0))


def test_a_stream_has_so_many_clients_and_no_more(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_stream, "MAX_CLIENTS", 2)
    first, second = channel.begun(), channel.begun()
    assert channel.begin()[1]["code"] == "BUSY"
    channel.send(Ingest.LEAVE, first)
    channel.begun()
    channel.add(second, rows(0, 1))
    assert channel.offset(second) == 1


def test_clients_that_are_refused_are_not_held(
    server: DataServer, connection: wsmux.Connection
) -> None:
    channel = Channel(connection, "none")
    assert read_line(channel.stream) == {"ok": True}
    for _ in range(20):
        assert channel.begin(create=None)[1]["code"] == "NO_DATASET"
    number = channel.begun()
    assert ingest_clients(server) == [f"~{number}"]


def test_a_process_that_takes_no_answers_is_not_waited_for(channel: Channel) -> None:
    asked = ingest_message(Ingest.OPEN, 1, b"{}\n")
    with pytest.raises(wsmux.StreamReset):
        any(channel.stream.write(asked * 1000) == 0 for _ in range(100))


def test_empty_batches_are_no_rows(store: Gated, channel: Channel) -> None:
    number = channel.begun()
    channel.add(number, rows(0, 0), rows(0, 1), rows(0, 0))
    assert channel.offset(number) == 1
    assert store.groups == [["~0"]]


def test_a_client_that_has_gone_leaves_nothing_in_memory(
    server: DataServer, channel: Channel
) -> None:
    number = channel.begun()
    message = ingest_message(Ingest.ROWS, number, rows(0, 100).serialize())
    channel.stream.write(message[:-100])  # a batch that is not whole
    wait_for(lambda: ingest_held(server).bytes > 0)
    channel.stream.reset()
    wait_for(lambda: ingest_held(server) == (0, 0))


def test_rows_that_do_not_arrive_are_not_waited_for_by_others(
    store: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_stream, "ARRIVAL", 0.2)
    bounds = GroupCommit(linger=0.001, client_bytes=64 * 1024, table_bytes=64 * 1024)
    with (
        serve_data(datasets=store, ingest=bounds) as server,
        wsmux.connect(server.url, timeout=WAIT) as connection,
    ):
        stalled = Channel(connection)
        assert read_line(stalled.stream) == {"ok": True}
        number = stalled.begun()
        stalled.stream.write(ingest_message(Ingest.ROWS, number, bytes(60_000))[:100])
        wait_for(lambda: ingest_held(server).bytes > 60_000)
        with opened(server.url) as client:
            client.write(rows(0, 400))
            client.flush(WAIT)
        with pytest.raises(wsmux.StreamReset):
            stalled.answer(number)
    assert held(store) == list(range(400))


def test_rows_that_take_their_time_to_arrive_are_waited_for_while_there_is_room(
    server: DataServer, connection: wsmux.Connection, channel: Channel, monkeypatch: Any
) -> None:
    monkeypatch.setattr(ingest_stream, "ARRIVAL", 0.0)
    monkeypatch.setattr(ingest_stream, "SLOWEST", float("inf"))
    number = channel.begun()
    message = ingest_message(Ingest.ROWS, number, GOOD)
    channel.stream.write(message[:-1])
    wait_for(lambda: ingest_held(server).bytes > 0)
    other = Channel(connection)
    assert read_line(other.stream) == {"ok": True}
    quick = other.begun(client="quick")
    other.add(quick, rows(10, 1))
    assert other.offset(quick) == 1
    channel.stream.write(message[-1:])
    assert channel.offset(number) == 3


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
        channel = Channel(connection)
        assert read_line(channel.stream) == {"ok": True}
        _, told = channel.begin()
        assert (told["code"], "Plain" in told["message"]) == ("BAD_REQUEST", True)


def test_a_server_that_ends_leaves_its_clients_to_another_one(
    server: DataServer, channel: Channel
) -> None:
    channel.begun()
    server.shutdown(WAIT)  # and does not wait so long
    with pytest.raises(wsmux.WsmuxError):
        channel.stream.read(1)
