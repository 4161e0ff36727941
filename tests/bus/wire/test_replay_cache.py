"""What was accepted is remembered until it has expired."""

from __future__ import annotations

from wsmux.bus.wire.replay_cache import ReplayCache


def test_what_was_never_added_is_not_known() -> None:
    assert not ReplayCache().knows(b"a", 0)


def test_what_was_added_is_known_until_its_end() -> None:
    replays = ReplayCache()
    replays.add(b"a", 10)
    assert replays.knows(b"a", 9)
    assert not replays.knows(b"a", 10)


def test_each_is_forgotten_at_its_own_end() -> None:
    replays = ReplayCache()
    replays.add(b"late", 20)
    replays.add(b"early", 10)
    assert not replays.knows(b"early", 15)
    assert len(replays) == 1
    assert replays.knows(b"late", 15)


def test_beyond_the_bound_the_first_to_end_goes() -> None:
    replays = ReplayCache(2)
    for signature, end in ((b"a", 30), (b"b", 10), (b"c", 20)):
        replays.add(signature, end)
    assert len(replays) == 2
    assert [replays.knows(each, 0) for each in (b"a", b"b", b"c")] == [True, False, True]
