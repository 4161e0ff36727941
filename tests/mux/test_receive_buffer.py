"""A ByteQueue returns what was appended, in order, in reads of any size."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsmux.mux.receive_buffer import FEW, PIECE, SMALL, ByteQueue
from wsmux.testing.guards import FREE_THREADED

from ..helpers.examples import examples


def queue_of(*chunks: bytes) -> ByteQueue:
    queue = ByteQueue()
    for chunk in chunks:
        queue.append(chunk)
    return queue


def test_new_queue_is_empty() -> None:
    assert ByteQueue().size == 0


def test_length_counts_bytes() -> None:
    assert queue_of(b"abc", b"de").size == 5


def test_empty_chunk_changes_nothing() -> None:
    queue = queue_of(b"", b"a", b"")
    assert (queue.take(9), queue.take(9), queue.size) == (b"a", b"", 0)


def test_empty_chunk_changes_nothing_where_many_wait() -> None:
    queue = queue_of(*[b"ab"] * FEW, b"")
    assert queue.size == 2 * FEW
    assert [queue.take(9) for _ in range(FEW + 1)] == [b"ab"] * FEW + [b""]


def test_take_from_an_empty_queue_is_empty() -> None:
    assert ByteQueue().take(5) == b""


@pytest.mark.parametrize("limit", [0, -1])
def test_take_of_nothing_takes_nothing(limit: int) -> None:
    queue = queue_of(b"abc")
    assert (queue.take(limit), queue.size) == (b"", 3)


def test_take_returns_a_whole_chunk_without_a_copy() -> None:
    chunk = b"x" * 1000
    assert queue_of(chunk).take(1000) is chunk


def test_take_never_joins_chunks() -> None:
    assert queue_of(b"abc", b"de").take(10) == b"abc"


def test_small_chunks_are_joined_where_many_wait() -> None:
    queue = queue_of(*[b"ab"] * (FEW + 3))
    for _ in range(FEW):
        assert queue.take(100) == b"ab"
    assert (queue.take(100), queue.take(100), queue.size) == (b"ababab", b"", 0)


def test_a_piece_of_joined_chunks_is_cut_and_handed_out_as_bytes() -> None:
    queue = queue_of(bytes(FEW), *[b"ab"] * (FEW + 1))
    for _ in range(FEW):
        queue.take(100)
    taken = queue.take(1)
    assert (type(taken), taken, queue.take(9), queue.size) == (bytes, b"a", b"bab", 0)


def test_a_large_chunk_is_never_joined() -> None:
    large = b"x" * SMALL
    queue = queue_of(*[b"a"] * (2 * FEW), large, b"b")
    assert queue.take_into(memoryview(bytearray(2 * FEW))) == 2 * FEW
    assert queue.take(2 * SMALL) is large
    assert queue.take(2) == b"b"


def test_pieces_of_joined_chunks_have_a_bound() -> None:
    queue = queue_of(*[bytes(100)] * 200)
    sizes = []
    while taken := queue.take(2**20):
        sizes.append(len(taken))
    assert (sum(sizes), max(sizes)) == (20_000, PIECE // 100 * 100)


@pytest.mark.parametrize("sizes", [(2,), (40,), (SMALL - 1,), (SMALL,), (2, SMALL)])
def test_queue_costs_a_quarter_more_than_it_holds(sizes: tuple[int, ...]) -> None:
    rounds = 100_000 if sizes == (2,) else 5_000
    tracemalloc.start()
    try:
        queue = ByteQueue()
        for _ in range(rounds):
            for size in sizes:
                queue.append(bytes(size))
        cost, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert queue.size == rounds * sum(sizes)
    more = 16 * rounds if FREE_THREADED else 0  # the heads of objects are larger there
    assert cost <= queue.size * 1.25 + 2048 + more


def test_take_cuts_a_chunk() -> None:
    queue = queue_of(b"abcdef")
    assert [queue.take(2), queue.take(3), queue.take(9)] == [b"ab", b"cde", b"f"]


def test_take_goes_on_with_the_next_chunk() -> None:
    queue = queue_of(b"abc", b"de")
    assert [queue.take(2), queue.take(2), queue.take(2)] == [b"ab", b"c", b"de"]


def test_take_into_fills_across_chunks() -> None:
    target = bytearray(4)
    queue = queue_of(b"abc", b"de")
    assert (queue.take_into(memoryview(target)), bytes(target), queue.size) == (4, b"abcd", 1)


def test_take_into_leaves_the_rest_of_a_larger_target() -> None:
    target = bytearray(b"....")
    assert (queue_of(b"a", b"b").take_into(memoryview(target)), bytes(target)) == (2, b"ab..")


def test_take_into_an_empty_target_takes_nothing() -> None:
    queue = queue_of(b"abc")
    assert (queue.take_into(memoryview(bytearray())), queue.size) == (0, 3)


def test_take_into_of_an_empty_queue_is_zero() -> None:
    assert ByteQueue().take_into(memoryview(bytearray(3))) == 0


def test_clear_tells_how_much_was_dropped() -> None:
    queue = queue_of(b"abc", b"de")
    queue.take(1)
    assert (queue.clear(), queue.size, queue.take(9)) == (4, 0, b"")


def test_queue_goes_on_after_clear() -> None:
    queue = queue_of(b"abc")
    queue.take(1)
    queue.clear()
    queue.append(b"xyz")
    assert queue.take(9) == b"xyz"


Move = Callable[[ByteQueue, bytearray], tuple[bytes, bytes]]


def appended(chunk: bytes) -> Move:
    def move(queue: ByteQueue, model: bytearray) -> tuple[bytes, bytes]:
        queue.append(chunk)
        model.extend(chunk)
        return b"", b""

    return move


def taken(limit: int) -> Move:
    def move(queue: ByteQueue, model: bytearray) -> tuple[bytes, bytes]:
        got = queue.take(limit)
        assert bool(got) is bool(limit and model)
        expected = bytes(model[: len(got)])
        del model[: len(got)]
        return got, expected

    return move


def taken_into(size: int) -> Move:
    def move(queue: ByteQueue, model: bytearray) -> tuple[bytes, bytes]:
        target = bytearray(size)
        count = queue.take_into(memoryview(target))
        assert count == min(size, len(model))
        expected = bytes(model[:count])
        del model[:count]
        return bytes(target[:count]), expected

    return move


moves = st.lists(
    st.one_of(
        st.binary(max_size=20).map(appended),
        st.integers(0, 25).map(taken),
        st.integers(0, 25).map(taken_into),
        st.integers(0, 2 * SMALL).map(taken_into),
    ),
    max_size=40,
)


# Enough chunks to begin with that further ones are joined, and some that are not.
filled = st.lists(st.sampled_from((b"", b"ab", b"cdefg", b"h" * SMALL)), max_size=3 * FEW)


@settings(max_examples=examples(100))
@given(filled, moves)
def test_queue_behaves_as_one_run_of_bytes(chunks: list[bytes], moves: list[Move]) -> None:
    queue, model = queue_of(*chunks), bytearray(b"".join(chunks))
    for move in moves:
        got, expected = move(queue, model)
        assert got == expected
        assert queue.size == len(model)
