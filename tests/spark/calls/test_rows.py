"""Rows through procedures of a real server, without Spark."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from wsmux.rpc import Ok, RpcServer, serve
from wsmux.spark import Procedure, SparkError, connection, rpc

from ...helpers.spark.servers import WAIT, Seen, calls_at, offered
from ...helpers.tables import each_case
from ...helpers.timeouts import CONNECTS
from ...helpers.waiting import wait_for


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    yield seen
    seen.gate.set()


@pytest.fixture(params=["msgpack", "json"])
def server(request: pytest.FixtureRequest, seen: Seen) -> Iterator[RpcServer]:
    with serve([offered(seen)], codec=request.param) as server:
        server.codec = request.param  # type: ignore[attr-defined]
        yield server


def procedure(server: RpcServer, name: str, **options: Any) -> Procedure:
    codec = server.codec  # type: ignore[attr-defined]
    return rpc(connection(server.url, codec=codec, retry_backoff=0.01, **options), f"test.{name}")


def test_rows_go_one_by_one_to_any_procedure(server: RpcServer) -> None:
    call = procedure(server, "one").rows(max_in_flight=8)
    assert list(call(range(500))) == list(range(0, 1000, 2))


def test_rows_go_many_to_a_message(server: RpcServer) -> None:
    call = procedure(server, "many").rows(max_in_flight=4, batch_rows=7)
    assert list(call(["a"] * 100)) == ["aa"] * 100


def test_no_rows_are_no_calls(server: RpcServer) -> None:
    assert list(procedure(server, "one").rows()([])) == []
    assert list(procedure(server, "many").rows(batch_rows=8)([])) == []


def test_a_procedure_for_many_takes_one_too(server: RpcServer) -> None:
    assert list(procedure(server, "many").rows()(["a", "b"])) == ["aa", "bb"]
    assert list(procedure(server, "whole").rows()([2, 4])) == [2, 4]


def test_rows_come_in_any_order_if_it_does_not_matter(server: RpcServer) -> None:
    call = procedure(server, "many").rows(batch_rows=3, ordered=False)
    assert sorted(call(range(100))) == list(range(0, 200, 2))


def test_a_function_of_whole_batches(server: RpcServer) -> None:
    call = procedure(server, "whole").rows(batch_rows=10, on_error="result")
    results = list(call(range(20)))
    assert [each.ok for each in results] == [True, False] * 10
    assert results[1].error.extra == [1]


def test_what_is_pickled_calls_as_well(server: RpcServer) -> None:
    call = pickle.loads(pickle.dumps(procedure(server, "one").rows()))
    assert list(call([1, 2])) == [2, 4]


def test_values_travel_in_forms_that_a_codec_has(server: RpcServer) -> None:
    noon = datetime(2020, 5, 17, 12, tzinfo=UTC)
    rows = [Decimal("1.50"), date(2020, 5, 17), (1, "a"), {"d": [date(2020, 5, 17)]}, noon]
    whole = noon if server.codec == "msgpack" else noon.isoformat()  # type: ignore[attr-defined]
    assert list(procedure(server, "same").rows()(rows)) == [
        "1.50",
        "2020-05-17",
        [1, "a"],
        {"d": ["2020-05-17"]},
        whole,
    ]


# Errors


@pytest.mark.parametrize(("name", "batch_rows"), [("one", 1), ("many", 4), ("many", 1)])
def test_the_first_bad_row_raises_behind_those_before_it(
    server: RpcServer, name: str, batch_rows: int
) -> None:
    results = procedure(server, name).rows(batch_rows=batch_rows)(["a", "b", "bad", "c"])
    assert [next(results), next(results)] == ["aa", "bb"]
    with pytest.raises(SparkError) as caught:
        next(results)
    error = caught.value
    assert (error.code, error.message, error.what) == ("BAD", "no number at all", f"test.{name}")
    assert error.place["url"] == server.url


@pytest.mark.parametrize(("name", "batch_rows"), [("one", 1), ("many", 2), ("many", 100)])
def test_bad_rows_are_results_if_that_is_wished(
    server: RpcServer, name: str, batch_rows: int
) -> None:
    call = procedure(server, name).rows(batch_rows=batch_rows, on_error="result")
    one, bad, crash, last = call(["a", "bad", "crash", "b"])
    assert (one, last) == (Ok("aa"), Ok("bb"))
    assert bad.error.code == "BAD"
    assert (crash.error.code, crash.error.message) == ("UNCAUGHT_ERROR", "the handler failed")


@pytest.mark.parametrize(("name", "batch_rows"), [("twice", 2), ("twice_alone", 1)])
def test_none_for_a_procedure_that_does_not_take_it_is_told(
    server: RpcServer, name: str, batch_rows: int
) -> None:
    call = procedure(server, name).rows(batch_rows=batch_rows, on_error="result")
    one, bad, other = call([1, None, "x"])
    assert one == Ok(2)
    assert bad.error.message.endswith(
        "must be integer; the row is None: if that is why, filter such rows out, or let the "
        "procedure take null"
    )
    assert other.error.message.endswith("must be integer")


def test_a_row_that_cannot_be_sent_fails_alone(server: RpcServer) -> None:
    call = procedure(server, "one").rows(on_error="result")
    one, bad, last = call([1, object(), 3])
    assert (one, last) == (Ok(2), Ok(6))
    assert bad.error.code == "CANNOT_SEND"


def test_an_answer_for_another_number_of_rows_is_told(server: RpcServer) -> None:
    with pytest.raises(SparkError, match=r"^\[BAD_ANSWER\] test.short: 2 rows .* with 0"):
        list(procedure(server, "short").rows(batch_rows=2)([1, 2]))


def test_a_procedure_for_one_row_says_so_when_it_gets_many(server: RpcServer) -> None:
    with pytest.raises(SparkError, match=r"^\[BAD_ANSWER\].*must be an object with \$values"):
        list(procedure(server, "same").rows(batch_rows=2)([1, 2]))


def test_a_missing_procedure_is_told(server: RpcServer) -> None:
    with pytest.raises(SparkError, match=r"^\[INVALID_REQUEST\] test.none"):
        list(procedure(server, "none").rows()([1]))


def test_a_call_that_takes_too_long_is_tried_again_and_then_told(
    server: RpcServer, seen: Seen
) -> None:
    call = procedure(server, "slow").rows(timeout=0.05, retries=1)
    with pytest.raises(SparkError, match=r"^\[TIMEOUT\] test.slow: test.slow did not answer in"):
        list(call([1]))
    wait_for(lambda: not calls_at(server))


def test_rows_that_take_too_long_are_results_if_that_is_wished(
    server: RpcServer, seen: Seen
) -> None:
    call = procedure(server, "slow").rows(timeout=CONNECTS, retries=0, on_error="result")
    slow, quick = call([1, 0])
    assert slow.error.code == "TIMEOUT"
    assert quick == Ok(0)


def test_no_server_fails_the_task_even_if_errors_are_results() -> None:
    recipe = connection("ws://127.0.0.1:1/", connect_timeout=0.1, retries=1, retry_backoff=0)
    with pytest.raises(SparkError, match=r"^\[UNEXPECTED_DISCONNECT\] a.b: "):
        list(rpc(recipe, "a.b").rows(on_error="result")([1]))


# The end


def test_a_generator_that_is_closed_cancels_its_calls(server: RpcServer, seen: Seen) -> None:
    results = procedure(server, "slow").rows(max_in_flight=8)(range(100))
    assert next(results) == 0
    assert seen.entered.wait(WAIT)
    assert calls_at(server)
    results.close()
    wait_for(lambda: not calls_at(server))
    assert len(seen.begun) < 50


def test_a_server_that_comes_back_is_called_again(seen: Seen) -> None:
    """Half of the rows meet a server that is gone."""
    with serve([offered(seen)]) as first:
        port = first.port
        recipe = connection(first.url, retry_backoff=0.01, connect_timeout=WAIT)
        results = rpc(recipe, "test.many").rows(batch_rows=2, max_in_flight=4)(rows_of_50())
        found = [next(results) for _ in range(10)]
    with serve([offered(seen)], port=port):
        found += list(results)
    assert found == [2 * row for row in range(50)]


def rows_of_50() -> Iterator[int]:
    yield from range(50)


def test_a_row_that_is_tried_again_is_known_by_its_key(seen: Seen) -> None:
    with serve([offered(seen)]) as server:
        recipe = connection(server.url)
        call = rpc(recipe, "test.keyed").rows(key="id")
        rows = [{"id": i % 10} for i in range(30)]
        assert list(call(rows)) == rows
    assert set(seen.rows.values()) == {1}
    assert len(seen.rows) == 10


@pytest.mark.parametrize("key", [0, lambda row: row[0]])
def test_keys_are_fields_numbers_or_functions(seen: Seen, key: Any) -> None:
    with serve([offered(seen)]) as server:
        call = rpc(connection(server.url), "test.keyed").rows(key=key, batch_rows=3)
        assert list(call([("a", 1), ("a", 2), ("b", 3)])) == [["a", 1], ["a", 1], ["b", 3]]


# Uploads


def test_the_rows_of_a_partition_are_one_upload(server: RpcServer, seen: Seen) -> None:
    call = procedure(server, "take").upload(init="orders")
    assert call(range(100)) == [{"init": "orders", "rows": 100}]
    assert seen.uploads == [list(range(100))]


def test_the_response_of_an_upload_is_checked(server: RpcServer) -> None:
    with pytest.raises(SparkError, match=r"^\[BAD\] test.take: no number at all"):
        procedure(server, "take").upload()(["a", "bad"])


def test_what_the_rows_raise_is_raised_as_it_is_and_cancels(server: RpcServer, seen: Seen) -> None:
    def rows() -> Iterator[int]:
        yield 1
        raise OSError("a disk")

    with pytest.raises(OSError, match="a disk"):
        procedure(server, "take").upload()(rows())
    assert seen.uploads == []


def test_a_lost_upload_raises(seen: Seen) -> None:
    with serve([offered(seen)]) as server:
        recipe = connection(server.url, connect_timeout=0.2, retries=0)

        def rows() -> Iterator[int]:
            yield 1
            server.shutdown(0)
            yield 2

        with pytest.raises(SparkError, match="UNEXPECTED_DISCONNECT"):
            rpc(recipe, "test.take").upload()(rows())


def test_an_upload_with_keys_is_repeated_in_parts(server: RpcServer, seen: Seen) -> None:
    call = procedure(server, "take_once").upload(key=0, retries=2, rows_per_call=4)
    assert call([(i,) for i in range(10)]) == [4, 4, 2]
    assert call([(i,) for i in range(10)]) == [0, 0, 0]
    assert call([]) == [0]


def test_an_upload_that_is_repeated_does_not_count_twice(seen: Seen) -> None:
    with serve([offered(seen)]) as first:
        port, recipe = first.port, connection(first.url, retry_backoff=0.01)
        call = rpc(recipe, "test.take_once").upload(key=0, retries=3, rows_per_call=5)
        gone = threading.Event()

        def rows() -> Iterable[tuple[int]]:
            for i in range(10):
                if i == 7:
                    first.shutdown(0)
                    gone.set()
                yield (i,)

        with serve_again(port, gone, seen):
            assert sum(call(rows())) == 10
    assert sorted(row[0] for rows in seen.uploads for row in rows) == list(range(10))


class serve_again:
    """Serve on a port as soon as it is free."""

    def __init__(self, port: int, free: threading.Event, seen: Seen) -> None:
        self._made: list[RpcServer] = []

        def wait() -> None:
            free.wait(WAIT)
            self._made.append(serve([offered(seen)], port=port))

        self._thread = threading.Thread(target=wait)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._thread.join(WAIT)
        for server in self._made:
            server.shutdown()


# What is refused


@pytest.mark.parametrize("name", ["nodot", ".b", "a.", ""])
def test_a_procedure_is_named_by_two_names(name: str) -> None:
    with pytest.raises(ValueError, match="expected a procedure as 'service.procedure'"):
        rpc(connection("ws://h/"), name)


def test_a_service_may_have_dots_in_its_name() -> None:
    assert repr(rpc(connection("ws://h/"), "a.b.c")) == "<Procedure a.b.c of <Recipe ws://h/>>"
    assert rpc(connection("ws://h/"), "a.b", "c.d").target.procedure == "c.d"


@each_case
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("rows", {"batch_rows": 0}),
        ("rows", {"max_in_flight": 0}),
        ("rows", {"timeout": 0}),
        ("rows", {"on_error": "ignore"}),
        ("rows", {"retries": -1}),
        ("upload", {"retries": 1}),
        ("upload", {"retries": -1, "key": 0}),
        ("upload", {"rows_per_call": 0}),
        ("columns", {"into": "a", "error_col": "a"}),
        ("columns", {"into": "a", "into_type": "number"}),
    ],
)
def test_wrong_arguments_of_calls_are_refused(kind: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must|at least|needs|both|not a supported"):
        getattr(rpc(connection("ws://h/"), "a.b"), kind)(**wrong)
