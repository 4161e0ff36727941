"""Rows are acknowledged when they are durable, once each, whatever happens to connections."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wsmux.spark import DataServer, GroupCommit, IngestClient, SparkError, ingest, serve_data
from wsmux.spark.protocol import Code, refusal

from ..helpers.checkout import ROOT
from ..helpers.spark.arrow_data import SCHEMA, pa, rows
from ..helpers.spark.ingesting import Gated, held, opened, row
from ..helpers.spark.inside import ingest_held, queue_of, ready_on, stream_of, wait_of
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

pytestmark = pytest.mark.spark

# So little time that nobody waits for it to pass.
AT_ONCE = 0.01


@pytest.fixture
def store(tmp_path: Path) -> Gated:
    return Gated(tmp_path, sync=False, auto_optimize=None)


@pytest.fixture
def server(store: Gated) -> Iterator[DataServer]:
    with serve_data(datasets=store, ingest=GroupCommit(linger=0.001)) as made:
        yield made


class Gate:
    """Hold the groups of a store."""

    def __init__(self, store: Gated) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        store.before = self.hold

    def hold(self, clients: Any) -> None:
        self.entered.set()
        assert self.opened.wait(WAIT)


@pytest.fixture
def gate(store: Gated) -> Iterator[Gate]:
    made = Gate(store)
    yield made
    made.opened.set()


def cut(server: DataServer) -> None:
    """Cut the connections of all clients."""
    for each in list(server.connections):
        each.abort()


def failure(call: Callable[[], object]) -> SparkError:
    with pytest.raises(SparkError) as caught:
        call()
    return caught.value


# Writing


def test_what_is_written_is_there_when_it_is_said_to_be(store: Gated, server: DataServer) -> None:
    with opened(server.url) as client:
        assert (client.offset, client.written, client.schema) == (0, 0, SCHEMA)
        assert client.write(row(0)) == 1
        assert client.write([row(1), row(2)]) == 3
        assert client.write(rows(3, 4)) == 7
        assert client.write(pa.Table.from_batches([rows(7, 2), rows(9, 1)])) == 10
        assert client.write([]) == 10
        assert client.wait_durable(10) == 10
        assert held(store) == list(range(10))
        assert client.wait_durable() == client.offset == client.written == 10


def test_clients_of_a_process_share_a_stream_for_a_dataset(
    store: Gated, server: DataServer
) -> None:
    with opened(server.url) as one, opened(server.url) as two, opened(server.url, "e") as other:
        assert stream_of(one) is stream_of(two) is not stream_of(other)
        one.write(row(0))
        other.write(row(1))
        one.close()  # and the stream stays
        assert two.wait_durable(two.write(row(2))) == 1
        with opened(server.url, client_id=one.client_id) as again:
            assert (again.offset, stream_of(again)) == (1, stream_of(two))
        former = stream_of(two)
    with opened(server.url) as later:
        assert stream_of(later) is not former
    assert (held(store), held(store, "e")) == ([0, 2], [1])


def test_closing_waits_for_what_was_written(store: Gated, server: DataServer) -> None:
    with opened(server.url) as client:
        client.write(rows(0, 1000))
    assert held(store) == list(range(1000))
    client.close()
    with pytest.raises(ValueError, match="is closed: open another one"):
        client.write(row(1))


def test_large_data_are_sent_in_pieces_and_kept_in_order(store: Gated, server: DataServer) -> None:
    many = pa.table({"id": range(60_000), "word": ["x" * 100] * 60_000})
    with opened(server.url) as client:
        assert client.write(many) == 60_000
    assert held(store) == list(range(60_000))


def test_bad_rows_are_refused_before_any_is_sent(store: Gated, server: DataServer) -> None:
    with opened(server.url) as client:
        error = failure(lambda: client.write([row(0), {"id": "x", "word": None}]))
        assert error.code == "WRONG_TYPE"
        assert "row 1: column 'id' takes int64, got str 'x'" in error.message
        assert (client.written, client.write(row(1))) == (0, 1)
    assert held(store) == [1]


def test_partition_values_that_cannot_be_are_refused_here(store: Gated, server: DataServer) -> None:
    store.commit(store.begin("p", "create", SCHEMA, partition_by=["word"]).txn, [])
    with opened(server.url, "p", create=None) as client:
        error = failure(lambda: client.write({"id": 1, "word": ""}))
        assert error.code == "BAD_ARROW"
        client.write([row(1), row(2)])
    assert held(store, "p") == [1, 2]


def test_a_row_that_is_too_large_is_refused_here(store: Gated) -> None:
    bounds = GroupCommit(client_bytes=8192, table_bytes=8192)
    with serve_data(datasets=store, ingest=bounds) as server, opened(server.url) as client:
        error = failure(lambda: client.write({"id": 1, "word": "x" * 5000}))
        assert (error.code, client.written) == ("TOO_LARGE", 0)
        client.write([{"id": number, "word": "x" * 1000} for number in range(50)])
    assert held(store) == list(range(50))


# Groups


def test_what_comes_during_a_commit_is_committed_together(
    store: Gated, server: DataServer, gate: Gate
) -> None:
    clients = [opened(server.url) for _ in range(5)]
    clients[0].write(row(0))
    assert gate.entered.wait(WAIT)
    for number, client in enumerate(clients):
        client.write(row(number + 10))
    wait_for(lambda: ingest_held(server).batches == 5)
    gate.opened.set()
    for client in clients:
        client.close()
    ids = [client.client_id for client in clients]
    assert store.groups == [ids[:1], store.groups[1]]
    assert sorted(store.groups[1]) == sorted(ids)
    assert store.describe("d").version == 2
    assert sorted(held(store)) == [0, 10, 11, 12, 13, 14]


def test_one_whose_rows_are_refused_fails_no_other(
    store: Gated, server: DataServer, gate: Gate
) -> None:
    good, bad, other = (opened(server.url) for _ in range(3))
    good.write(row(0))
    assert gate.entered.wait(WAIT)

    def refuse(clients: Any) -> None:
        if bad.client_id in clients:
            raise refusal(Code.BAD_ARROW, "an odd row")

    store.before = refuse
    for number, client in enumerate((good, bad, other)):
        client.write(row(number + 1))
    wait_for(lambda: ingest_held(server).batches == 3)
    gate.opened.set()
    good.close()
    other.close()
    error = failure(bad.close)
    assert (error.code, error.message, error.what) == ("BAD_ARROW", "an odd row", "ingest d")
    assert sorted(held(store)) == [0, 1, 3]


def test_a_store_that_fails_is_told_with_its_code(store: Gated, server: DataServer) -> None:
    def full(clients: Any) -> None:
        raise OSError(28, "No space left on device", "part")

    store.before = full
    client = opened(server.url)
    client.write(row(0))
    error = failure(client.flush)
    assert (error.code, error.message) == ("STORE_FAILED", "No space left on device: part")
    assert failure(lambda: client.write(row(1))).code == "STORE_FAILED"
    assert failure(client.close).code == "STORE_FAILED"


def test_a_reason_is_told_that_comes_while_rows_are_sent(store: Gated, server: DataServer) -> None:
    def refuse(clients: Any) -> None:
        raise refusal(Code.TOO_LARGE, "too many partitions")

    store.before = refuse
    client = opened(server.url)
    many = rows(0, 300_000)  # several windows
    assert failure(lambda: client.wait_durable(client.write(many))).code == "TOO_LARGE"
    assert failure(client.close).code == "TOO_LARGE"


def test_a_store_with_a_bug_says_so_and_goes_on(store: Gated, server: DataServer) -> None:
    def bug(clients: Any) -> None:
        store.before = lambda clients: None
        raise LookupError("a bug")

    store.before = bug
    client, other = opened(server.url), opened(server.url)
    client.write(row(0))
    assert failure(client.flush).code == "STORE_FAILED"
    other.write(row(1))
    other.close()
    assert failure(client.close).code == "STORE_FAILED"
    assert held(store) == [1]


def test_a_store_that_is_busy_is_asked_again(store: Gated, server: DataServer) -> None:
    left = [1, 2]

    def busy(clients: Any) -> None:
        if left:
            left.pop()
            raise refusal(Code.BUSY, "not now")

    store.before = busy
    with opened(server.url) as client:
        client.write(row(0))
    assert (held(store), left) == ([0], [])


# Bounds and time


def test_write_waits_when_too_much_is_not_acknowledged(
    store: Gated, server: DataServer, gate: Gate
) -> None:
    client = opened(server.url, max_unacknowledged=1000)
    client.write(row(0))
    error = failure(lambda: [client.write(row(at), timeout=AT_ONCE) for at in range(1, 10)])
    written = client.written
    assert (error.code, 1 < written < 10) == ("TIMEOUT", True)
    assert f"; 0 of {written} are durable" in error.message
    assert failure(lambda: client.wait_durable(written, timeout=AT_ONCE)).code == "TIMEOUT"
    assert failure(lambda: client.flush(timeout=AT_ONCE)).code == "TIMEOUT"
    gate.opened.set()
    assert client.write(row(written)) == written + 1
    client.close()
    assert held(store) == list(range(written + 1))


def test_a_server_that_takes_no_more_bytes_stops_no_write_below_the_bound(
    store: Gated, gate: Gate
) -> None:
    """Its memory is bounded for a client and for a dataset; the rest waits at the clients."""
    bounds = GroupCommit(client_bytes=100_000, table_bytes=150_000)
    with serve_data(datasets=store, ingest=bounds) as server:
        clients = [opened(server.url) for _ in range(3)]
        batch = rows(0, 100_000)  # more than a window
        for client in clients:
            assert client.write(batch, timeout=WAIT) == 100_000
        wait_for(lambda: ingest_held(server).bytes > 50_000)
        most = 0

        def look(clients: Any) -> None:
            nonlocal most
            most = max(most, ingest_held(server).bytes)

        store.behind = look
        gate.opened.set()
        for client in clients:
            client.close()
        assert 0 < most <= 150_000
    assert len(held(store)) == 300_000


def test_closing_in_vain_says_how_much_is_durable(
    store: Gated, server: DataServer, gate: Gate
) -> None:
    client = opened(server.url)
    client.write(row(0))
    error = failure(lambda: client.close(timeout=AT_ONCE))
    assert (error.code, client.offset, client.written) == ("TIMEOUT", 0, 1)
    client.close()


def test_after_an_exception_nothing_is_waited_for(
    store: Gated, server: DataServer, gate: Gate
) -> None:
    client = opened(server.url)
    client.write(row(0))
    client.__exit__(KeyError, KeyError(), None)
    with pytest.raises(ValueError, match="is closed"):
        client.wait_durable(1)


# Once each


@pytest.mark.parametrize("moment", ["before", "behind"])
def test_a_connection_that_is_cut_around_a_commit(
    store: Gated, server: DataServer, moment: str
) -> None:
    def cut_once(clients: Any) -> None:
        setattr(store, moment, lambda clients: None)
        cut(server)

    setattr(store, moment, cut_once)
    with opened(server.url) as client:
        for number in range(5):
            client.wait_durable(client.write(row(number)))
    assert held(store) == list(range(5))


def test_lost_connections_of_a_client_that_has_nothing_to_send_do_not_add_up(
    store: Gated, server: DataServer
) -> None:
    with opened(server.url, retries=0, connect_timeout=WAIT) as client:
        for _ in range(4):
            former = ready_on(client)
            cut(server)
            wait_for(lambda former=former: ready_on(client) not in (None, former))
        client.write(row(0))
    assert held(store) == [0]


def test_a_client_with_nothing_to_send_rests_before_it_comes_again(server: DataServer) -> None:
    """Whoever cuts each of its connections at once must not have it make one behind the other."""
    client = opened(server.url, retry_backoff=3600.0)
    ready_on(client)
    cut(server)
    wait_for(lambda: ready_on(client) is None)
    client.write(row(0))
    with pytest.raises(SparkError, match="TIMEOUT"):
        client.close(timeout=0.5)
    assert ready_on(client) is None


def test_rows_that_wait_behind_a_commit_when_the_client_comes_again(
    store: Gated, server: DataServer, gate: Gate
) -> None:
    """What was queued of the former stream is dropped, and sent again."""
    with opened(server.url) as client:
        client.write(row(0))
        assert gate.entered.wait(WAIT)
        client.write(row(1))
        wait_for(lambda: ingest_held(server).batches == 1)
        former = stream_of(client)
        cut(server)
        client.write(row(2))
        wait_for(lambda: ingest_held(server).batches == 0)
        gate.opened.set()
        assert client.wait_durable() == 3
        assert stream_of(client) is not former
    assert held(store) == [0, 1, 2]


def test_a_failure_behind_a_commit_doubles_nothing(store: Gated, server: DataServer) -> None:
    """The client is told that it failed; another one with its id learns what is there."""

    def fail(clients: Any) -> None:
        store.behind = lambda clients: None
        raise refusal(Code.BUSY, "it is not known whether it was done")

    store.behind = fail
    with opened(server.url) as client:
        client.write(row(0))
        client.write(row(1))
    assert held(store) == [0, 1]


def test_a_program_goes_on_where_the_one_before_it_ended(store: Gated, server: DataServer) -> None:
    with opened(server.url, client_id="loader") as client:
        client.write(rows(0, 10))
    with opened(server.url, client_id="loader") as client:
        assert client.offset == client.written == 10
        client.write(rows(client.offset, 5))
    with opened(server.url) as other:
        assert other.offset == 0
    assert held(store) == list(range(15))


# Seconds after which a store has forgotten a client with a random id.
FORGOTTEN = 86_402.0


def test_a_client_that_wrote_nothing_for_a_day_goes_on(store: Gated, server: DataServer) -> None:
    with opened(server.url) as client:
        stream = stream_of(client)
        for number in range(3):
            client.write(row(number))
            client.flush()
            store.expire(time.time() + FORGOTTEN)
        assert stream_of(client) is stream
    assert held(store) == [0, 1, 2]


def test_a_client_that_the_next_server_has_forgotten_goes_on(store: Gated, tmp_path: Path) -> None:
    """All that it has written was durable, so nothing can be there twice."""
    with serve_data(datasets=store) as one:
        client = opened(one.url)
        former = client.client_id
        client.write(rows(0, 3))
        client.flush()
    later = Gated(tmp_path, sync=False)
    later.expire(time.time() + FORGOTTEN)
    with serve_data(datasets=later, port=one.port) as two:
        wait_for(lambda: client.client_id != former)
        assert client.wait_durable(client.write(rows(3, 2))) == 5
        cut(two)
        assert client.wait_durable(client.write(row(5))) == client.offset == client.written == 6
        client.close()
    assert held(later) == [0, 1, 2, 3, 4, 5]


def test_rows_of_which_nothing_is_known_any_more_are_not_written_twice(
    store: Gated, tmp_path: Path
) -> None:
    """They are durable, and a day has passed before the client learned it."""
    later = Gated(tmp_path, sync=False)
    with serve_data(datasets=store) as one:
        client = opened(one.url)
        client.write(row(0))
        client.flush()
        gate = Gate(store)
        store.before, store.behind = (lambda clients: None), gate.hold
        client.write(row(1))
        assert gate.entered.wait(WAIT)
        one.shutdown(0.1)
    later.expire(time.time() + FORGOTTEN)
    try:
        with serve_data(datasets=later, port=one.port):
            assert failure(client.flush).code == "TAKEN_OVER"
    finally:
        gate.opened.set()
    assert failure(client.close).code == "TAKEN_OVER"
    assert held(later) == [0, 1]


def test_a_client_whose_id_is_taken_over_is_told(store: Gated, server: DataServer) -> None:
    first = opened(server.url, client_id="loader")
    first.write(row(0))
    first.flush()
    with opened(server.url, client_id="loader") as second:
        assert second.offset == 1
        wait_for(lambda: not _is_usable(first))
        assert failure(lambda: first.write(row(1))).code == "TAKEN_OVER"
        second.write(row(2))
    first.close()
    assert held(store) == [0, 2]


def _is_usable(client: IngestClient) -> bool:
    try:
        client.write([])
    except SparkError:
        return False
    return True


def test_an_id_that_another_server_has_written_with_is_told(store: Gated, tmp_path: Path) -> None:
    """Two processes serve one directory: what they know of each other is in the table."""
    with (
        serve_data(datasets=store) as one,
        serve_data(datasets=Gated(tmp_path, sync=False)) as two,
        opened(two.url, client_id="x") as second,
    ):
        first = opened(one.url, client_id="x")
        second.write(row(0))
        second.flush()
        first.write(row(5))
        assert failure(first.flush).code == "TAKEN_OVER"
        assert failure(first.close).code == "TAKEN_OVER"
    assert held(store) == [0]


@pytest.mark.parametrize("call", ["write", "wait_durable"])
def test_an_interrupt_loses_and_doubles_nothing(
    store: Gated, server: DataServer, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(server.url) as client:
        client.write(row(0))

        def interrupted(*arguments: Any) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        if call == "write":
            monkeypatch.setattr(*queue_of(client), interrupted)
        else:
            monkeypatch.setattr(*wait_of(client), interrupted)
            Gate(store).opened.set()
        with pytest.raises(KeyboardInterrupt):
            client.wait_durable(client.write(row(1)))
        assert client.written == 2
        client.write(row(2))
    assert held(store) == [0, 1, 2]


# Datasets


def test_a_dataset_that_is_not_there(server: DataServer) -> None:
    error = failure(lambda: opened(server.url, "other", create=None))
    assert (error.code, error.what) == ("NO_DATASET", "ingest other")


def test_a_dataset_that_is_there_keeps_its_schema(store: Gated, server: DataServer) -> None:
    with opened(server.url), opened(server.url, create=pa.schema([("x", pa.int8())])) as client:
        assert client.schema == SCHEMA
    assert store.describe("d").version == 0


def test_a_column_that_is_added_meanwhile_is_null(store: Gated, server: DataServer) -> None:
    with opened(server.url) as client:
        client.wait_durable(client.write(row(0)))
        wider = pa.schema([*SCHEMA, pa.field("more", pa.int64())])
        store.commit(store.begin("d", "append", wider, merge_schema=True).txn, [])
        client.write(row(1))
    assert held(store) == [0, 1]


def test_a_column_that_is_gone_meanwhile_is_an_error(store: Gated, server: DataServer) -> None:
    client = opened(server.url)
    narrow = pa.schema([SCHEMA.field("id")])
    store.commit(store.begin("d", "overwrite", narrow, overwrite_schema=True).txn, [])
    client.write(row(1))
    assert failure(client.flush).code == "WRONG_SCHEMA"
    assert failure(client.close).code == "WRONG_SCHEMA"


# The process


FORKS = """
import os, sys
import wsmux, wsmux.spark
from tests.helpers.rpc.forks import in_child, wrong
from tests.helpers.spark.ingesting import opened, row
with opened(sys.argv[1]) as client:
    calls = {
        "write": lambda: client.write(row(0)),
        "flush": client.flush,
        "close": client.close,
    }
    ends = {"leave": lambda: client.__exit__(KeyError, KeyError(), None)}
    assert in_child(lambda: wrong(calls, ends)) == []
    client.write(row(1))
"""


def test_a_forked_child_cannot_use_it(store: Gated, server: DataServer) -> None:
    subprocess.run([sys.executable, "-c", FORKS, server.url], check=True, cwd=ROOT, timeout=WAIT)
    assert held(store) == [1]


def test_neither_pyspark_nor_msgpack_is_needed(store: Gated, server: DataServer) -> None:
    program = (
        "import sys\n"
        "sys.modules.update(pyspark=None, msgpack=None, deltalake=None, flask=None)\n"
        "import pyarrow as pa, wsmux.spark\n"
        "schema = pa.schema([pa.field('id', pa.int64(), False), ('word', pa.string())])\n"
        "with wsmux.spark.ingest(sys.argv[1], 'd', create=schema) as rows:\n"
        "    rows.wait_durable(rows.write({'id': 7, 'word': None}))\n"
    )
    subprocess.run([sys.executable, "-c", program, server.url], check=True, cwd=ROOT, timeout=WAIT)
    assert held(store) == [7]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"client_id": ""}, "client_id must be 1 to 200 printable characters, not ''"),
        ({"client_id": "a\n"}, "client_id must be"),
        ({"max_unacknowledged": 0}, "max_unacknowledged must be above 0 bytes, not 0"),
        ({"timeout": 0}, "timeout must be above 0 seconds, not 0"),
        ({"retries": -1}, "must not be negative"),
    ],
)
def test_bad_options_are_told(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ingest("ws://127.0.0.1:1/", "d", **options)


def test_an_offset_that_was_not_written_is_told(server: DataServer) -> None:
    with opened(server.url) as client, pytest.raises(ValueError, match="offset 1 was not written"):
        client.wait_durable(1)


def test_a_server_that_is_not_there(server: DataServer) -> None:
    error = failure(lambda: ingest("ws://127.0.0.1:1/", "d", retries=0, connect_timeout=AT_ONCE))
    assert error.code in ("NO_CONNECTION", "TIMEOUT")


def test_a_server_that_goes_for_good_is_told(store: Gated) -> None:
    with serve_data(datasets=store) as server:
        client = opened(server.url, retries=1, connect_timeout=2.0)
        client.write(row(0))
        client.flush()
    error = failure(lambda: client.wait_durable(client.write(row(1))))
    assert error.code in ("NO_CONNECTION", "TIMEOUT")
    assert failure(client.close).code == error.code
    assert (client.offset, client.written) == (1, 2)
