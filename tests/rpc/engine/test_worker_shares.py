"""Workers are shared among sessions: a bound for each, and always one left for who has none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wsmux.rpc.engine.worker_shares import Share, WorkerShares


def fill(shares: WorkerShares[int], share: Share[int], count: int) -> int:
    """Ask for that many, and return how many a session has got."""
    return sum(shares.ask(share, number) for number in range(count))


def test_a_session_holds_its_own_bound_at_most() -> None:
    shares: WorkerShares[int] = WorkerShares(2, 100)
    assert fill(shares, Share(), 5) == 2


def test_a_session_never_holds_more_than_it_leaves() -> None:
    shares: WorkerShares[int] = WorkerShares(1000, 16)
    assert [fill(shares, Share(), 20) for _ in range(6)] == [8, 4, 2, 1, 1, 0]


def test_a_single_worker_goes_to_whoever_comes() -> None:
    shares: WorkerShares[int] = WorkerShares(1, 1)
    assert [fill(shares, Share(), 2) for _ in range(2)] == [1, 0]


def test_what_waits_starts_as_it_came() -> None:
    shares: WorkerShares[int] = WorkerShares(1, 10)
    share: Share[int] = Share()
    fill(shares, share, 4)
    assert [shares.give_back(share) for _ in range(4)] == [[1], [2], [3], []]
    assert (share.running, shares.running) == (0, 0)


def test_sessions_that_wait_take_turns() -> None:
    shares: WorkerShares[str] = WorkerShares(1, 1)
    first, second, holder = Share[str](), Share[str](), Share[str]()
    assert shares.ask(holder, "")
    for work in ("a", "b"):
        shares.ask(first, f"first {work}")
        shares.ask(second, f"second {work}")
    started, giving = [], holder
    for _ in range(4):
        (work,) = shares.give_back(giving)
        started.append(work)
        giving = first if work.startswith("first") else second
    assert started == ["first a", "second a", "first b", "second b"]


def test_what_is_forgotten_never_starts() -> None:
    shares: WorkerShares[int] = WorkerShares(1, 1)
    share, other = Share[int](), Share[int]()
    fill(shares, share, 3)
    fill(shares, other, 2)
    assert shares.forget(share, lambda number: False) == [1, 2]
    assert shares.forget(other, lambda number: number == 1) == [0]
    assert shares.give_back(share) == [1]


moves = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["ask", "give", "forget"])))


@given(each=st.integers(1, 5), total=st.integers(1, 12), moves=moves)
def test_bounds_hold_and_nobody_waits_for_nothing(
    each: int, total: int, moves: list[tuple[int, str]]
) -> None:
    shares: WorkerShares[int] = WorkerShares(each, total)
    sessions = [Share[int]() for _ in range(5)]
    for number, (index, move) in enumerate(moves):
        share = sessions[index]
        if move == "ask":
            shares.ask(share, number)
        elif move == "give" and share.running:
            shares.give_back(share)
        elif move == "forget":
            shares.forget(share, lambda work: bool(work % 2))
        assert shares.running == sum(each.running for each in sessions) <= total
        assert max(share.running for share in sessions) <= each
        if shares.running < total:
            assert not any(share.waiting and not share.running for share in sessions)
        waiting = [share for share in sessions if share.waiting]
        assert sorted(map(id, shares._in_turn)) == sorted(map(id, waiting))
