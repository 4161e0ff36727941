"""Messages of many rows, and what is remembered of their keys."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from wsmux.rpc import Client, Context, Err, RiverError, Service, connect, serve
from wsmux.rpc.schema.document import serialize
from wsmux.spark import Deduplicator, batched
from wsmux.spark.calls.batches import NotAnswers, keyed_row, read_answers, read_type, rows_message

from ...helpers.spark.servers import WAIT
from ...helpers.tables import each_case


def test_a_message_of_rows() -> None:
    assert rows_message([1, 2]) == {"$rows": [1, 2]}
    assert rows_message([1], ["k"]) == {"$rows": [1], "$keys": ["k"]}


def test_answers_hold_values_and_errors_by_row() -> None:
    answer = {"$values": [1, None, 3], "$errors": [[1, "BAD", "odd", {"n": 2}]]}
    values, errors = read_answers(answer, 3)
    assert values == [1, None, 3]
    assert list(errors) == [1]
    assert (errors[1].code, errors[1].message, errors[1].extra) == ("BAD", "odd", {"n": 2})


@each_case
@pytest.mark.parametrize(
    "answer",
    [
        None,
        [1, 2],
        {"values": [1, 2]},
        {"$values": [1]},
        {"$values": [1, 2], "$errors": [[0]]},
        {"$values": [1, 2], "$errors": [["x", "BAD", "odd"]]},
        {"$values": [1, 2], "$errors": [[2, "BAD", "odd"]]},
        {"$values": [1, 2], "$errors": [[-1, "BAD", "odd"]]},
        {"$values": [1, 2], "$errors": [[0, 5, "odd"]]},
        {"$values": [1, 2], "$errors": 5},
    ],
)
def test_what_are_no_answers_is_refused(answer: Any) -> None:
    with pytest.raises(NotAnswers):
        read_answers(answer, 2)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"$values": []}, None),
        ({"$values": [], "$type": "bigint"}, "bigint"),
        ({"$values": [], "$type": "struct<a: int>"}, "struct<a:int>"),
    ],
)
def test_the_answer_to_no_rows_may_tell_a_type(answer: Any, expected: str | None) -> None:
    found = read_type(answer)
    assert (found and str(found)) == expected


@pytest.mark.parametrize(
    "answer",
    [None, [], {"$values": [1]}, {"$values": [], "$type": "odd"}, {"$values": [], "$type": 5}],
)
def test_what_tells_no_type_is_refused(answer: Any) -> None:
    with pytest.raises(NotAnswers):
        read_type(answer)


# What schemas and annotations are about

WHOLE = {"type": "integer"}


def typed() -> Service:
    """Return a service whose procedures take whole numbers, and never the unlucky one."""
    service = Service("typed")

    @service.rpc(init=WHOLE, response=WHOLE)
    @batched
    def double(ctx: Context, row: Any) -> Any:
        return row * 2

    @service.rpc(init=WHOLE)
    @batched(whole=True)
    def doubles(ctx: Context, rows: list[int]) -> list[int | Err]:
        assert None not in rows
        return [row * 2 if row != 13 else Err(RiverError("BAD", "unlucky")) for row in rows]

    @service.rpc(init=WHOLE)
    @batched(deduplicator=Deduplicator())
    def keyed(ctx: Context, row: int) -> int:
        return row * 2

    def logged(handler: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(handler)(lambda ctx, init: handler(ctx, init))

    service.rpc(init=WHOLE, name="wrapped")(logged(batched(lambda ctx, row: row * 2)))

    @service.rpc()
    @batched
    def untyped(ctx: Context, row: Any) -> Any:
        return row

    return service


@pytest.fixture
def client() -> Iterator[Client]:
    with serve([typed()]) as server, connect(server.url, timeout=WAIT) as client:
        yield client


@pytest.mark.parametrize("name", ["double", "doubles", "keyed", "wrapped"])
def test_a_row_that_the_schema_forbids_refuses_no_other(client: Client, name: str) -> None:
    message = rows_message([1, None, 3, "x"], ["a", "b", "c", "d"])
    values, errors = read_answers(client.rpc("typed", name, message), 4)
    assert values == [2, None, 6, None]
    assert {at: (error.code, error.message) for at, error in errors.items()} == dict.fromkeys(
        (1, 3), ("INVALID_REQUEST", "the row failed validation: must be integer")
    )


def test_errors_of_the_function_stay_at_their_rows(client: Client) -> None:
    values, errors = read_answers(client.rpc("typed", "doubles", rows_message([None, 13, 2])), 3)
    assert values == [None, None, 4]
    assert {at: error.code for at, error in errors.items()} == {0: "INVALID_REQUEST", 1: "BAD"}
    values, errors = read_answers(client.rpc("typed", "doubles", rows_message([None])), 1)
    assert list(errors) == [0]


def test_a_caller_with_one_row_has_it_checked_as_ever(client: Client) -> None:
    assert client.rpc("typed", "double", 4) == 8
    with pytest.raises(RiverError, match="procedure init failed validation: must be integer"):
        client.rpc("typed", "double", None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("double", "bigint"), ("doubles", "bigint"), ("keyed", "bigint"), ("untyped", None)],
)
def test_no_rows_are_answered_with_the_type(
    client: Client, name: str, expected: str | None
) -> None:
    found = read_type(client.rpc("typed", name, rows_message([])))
    assert (found and str(found)) == expected


def test_the_question_for_the_type_alone_is_in_no_schema(client: Client) -> None:
    service = typed()
    assert [name for name in service.procedures if "$" in name] == []
    for name in service.procedures:
        told = client.rpc("typed", name, {"$rows": []}, WAIT)
        assert client.rpc("typed", f"{name}$type", None, WAIT) == told


def test_the_schema_that_is_served_is_that_of_a_row() -> None:
    told = serialize([typed()])["services"]["typed"]["procedures"]["double"]
    assert (told["init"], told["output"]) == (WHOLE, WHOLE)


def test_whole_batches_and_a_deduplicator_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="whole=True and a deduplicator"):
        batched(whole=True, deduplicator=Deduplicator())


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_key_is_worked_on_once() -> None:
    known = Deduplicator()
    made = iter(range(10))
    assert [known.once(key, lambda: next(made)) for key in ("a", "b", "a", 1, b"x", 1)] == [
        0,
        1,
        0,
        2,
        3,
        2,
    ]
    assert len(known) == 4


def test_no_key_is_worked_on_each_time() -> None:
    known = Deduplicator()
    made = iter(range(10))
    assert [known.once(None, lambda: next(made)) for _ in range(3)] == [0, 1, 2]
    assert len(known) == 0


def test_a_key_of_another_kind_is_refused() -> None:
    with pytest.raises(RiverError, match="BAD_KEY"):
        Deduplicator().once(["a"], lambda: 1)


def test_what_fails_is_not_remembered() -> None:
    known = Deduplicator()
    with pytest.raises(ZeroDivisionError):
        known.once("a", lambda: 1 // 0)
    assert known.once("a", lambda: 5) == 5


def test_the_oldest_keys_are_forgotten_first() -> None:
    known = Deduplicator(keys=2)
    for key in "abc":
        known.once(key, lambda: 0)
    assert [known.once(key, lambda: 1) for key in "cba"] == [0, 0, 1]


def test_keys_are_forgotten_in_time() -> None:
    clock = Clock()
    known = Deduplicator(seconds=10, now=clock)
    known.once("a", lambda: 0)
    clock.now += 9
    assert known.once("a", lambda: 1) == 0
    clock.now += 1
    assert known.once("a", lambda: 2) == 2


def test_who_comes_meanwhile_waits_for_the_first() -> None:
    known = Deduplicator()
    entered, gate = threading.Event(), threading.Event()
    found: list[int] = []

    def work() -> int:
        entered.set()
        gate.wait(WAIT)
        return 7

    threads = [threading.Thread(target=lambda: found.append(known.once("a", work)))]
    threads[0].start()
    assert entered.wait(WAIT)
    threads.append(threading.Thread(target=lambda: found.append(known.once("a", lambda: 8))))
    threads[1].start()
    gate.set()
    for thread in threads:
        thread.join(WAIT)
    assert found == [7, 7]


def test_rows_of_an_upload_are_fresh_once() -> None:
    known = Deduplicator()
    requests = [keyed_row("x", "k1"), "without", keyed_row("y", "k2"), keyed_row("z", None)]
    assert list(known.fresh(requests)) == ["x", "without", "y", "z"]
    assert list(known.fresh(requests)) == ["without", "z"]


def test_a_row_whose_handler_fails_stays_fresh() -> None:
    known = Deduplicator()
    rows = known.fresh([keyed_row("x", 1), keyed_row("y", 2)])
    assert [next(rows), next(rows)] == ["x", "y"]
    rows.close()  # type: ignore[attr-defined]
    assert list(known.fresh([keyed_row("x", 1), keyed_row("y", 2)])) == ["y"]
