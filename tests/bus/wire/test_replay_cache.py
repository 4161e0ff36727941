"""What was accepted is remembered until it has expired, and a source loses only its own room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wsmux.bus.wire.replay_cache import ReplayCache

NOW = 1000


def filled(source: bytes, ends: list[int], remembered: int) -> ReplayCache:
    """Return a cache to which a source added signatures that are named for their order."""
    replays = ReplayCache(remembered)
    for number, end in enumerate(ends):
        assert replays.add(source, b"%s-%d" % (source, number), end, NOW)
    return replays


def test_what_was_never_added_is_not_known() -> None:
    assert not ReplayCache().knows(b"a", 0)


def test_what_was_added_is_known_until_its_end() -> None:
    replays = ReplayCache()
    assert replays.add(b"twin", b"a", 10, 0)
    assert replays.knows(b"a", 9)
    assert not replays.knows(b"a", 10)


def test_each_is_forgotten_at_its_own_end() -> None:
    replays = ReplayCache()
    assert replays.add(b"twin", b"late", 20, 0)
    assert replays.add(b"twin", b"early", 10, 0)
    assert not replays.knows(b"early", 15)
    assert len(replays) == 1
    assert replays.knows(b"late", 15)


def test_beyond_the_bound_the_first_to_end_goes() -> None:
    replays = ReplayCache(2)
    for signature, end in ((b"a", 30), (b"b", 10), (b"c", 20)):
        assert replays.add(b"twin", signature, end, 0)
    assert len(replays) == 2
    assert [replays.knows(each, 0) for each in (b"a", b"b", b"c")] == [True, False, True]


def test_what_was_forgotten_too_early_is_refused() -> None:
    replays = ReplayCache(2)
    for signature, end in ((b"a", 30), (b"b", 10), (b"c", 20)):
        assert replays.add(b"twin", signature, end, 0)
    assert not replays.add(b"twin", b"b", 10, 0)
    assert len(replays) == 2


def test_what_would_be_the_first_to_go_is_refused_at_once() -> None:
    replays = filled(b"twin", [NOW + 20, NOW + 30], 2)
    assert not replays.add(b"twin", b"short", NOW + 10, NOW)
    assert replays.knows(b"twin-0", NOW)
    assert replays.knows(b"twin-1", NOW)


def test_a_steady_stream_beyond_the_bound_is_accepted() -> None:
    replays = ReplayCache(100)
    for number in range(1000):
        second = NOW + number // 10
        assert replays.add(b"twin", b"%d" % number, second + 60, second)
    assert len(replays) == 100


def test_a_flood_takes_no_room_from_another_source() -> None:
    replays = ReplayCache(100)
    assert replays.add(b"victim", b"normal", NOW + 60, NOW)
    for number in range(1000):
        assert replays.add(b"flood", b"%d" % number, NOW + 3600 + number, NOW)
    assert replays.knows(b"normal", NOW)
    assert len(replays) == 100
    assert all(replays.add(b"victim", b"v%d" % number, NOW + 60, NOW) for number in range(49))
    assert all(replays.knows(b"v%d" % number, NOW) for number in range(49))
    assert len(replays) == 100


def test_each_of_many_sources_has_its_share() -> None:
    replays = filled(b"flood", [NOW + 3600] * 100, 100)
    for source in range(9):
        for number in range(10):
            assert replays.add(b"%d" % source, b"%d-%d" % (source, number), NOW + 60, NOW)
    assert len(replays) == 100
    kept = [b"%d-%d" % (source, number) for source in range(9) for number in range(10)]
    assert all(replays.knows(signature, NOW) for signature in kept)


def test_without_room_for_another_source_it_is_refused() -> None:
    replays = ReplayCache(3)
    for source in (b"a", b"b", b"c"):
        assert replays.add(source, source, NOW + 60, NOW)
    assert not replays.add(b"d", b"d", NOW + 60, NOW)
    assert all(replays.knows(source, NOW) for source in (b"a", b"b", b"c"))
    assert replays.add(b"d", b"d", NOW + 120, NOW + 60)


def test_a_clock_that_is_set_back_opens_nothing() -> None:
    replays = filled(b"twin", [NOW + 60], 10)
    assert not replays.knows(b"twin-0", NOW + 60)
    assert not replays.add(b"twin", b"twin-0", NOW + 60, NOW)


def test_a_message_that_was_not_accepted_may_come_again() -> None:
    replays = filled(b"twin", [NOW + 60, NOW + 50], 10)
    replays.forget(b"twin", b"twin-0")
    assert not replays.knows(b"twin-0", NOW)
    assert replays.knows(b"twin-1", NOW)
    assert replays.add(b"twin", b"twin-0", NOW + 60, NOW)
    assert len(replays) == 2


def test_what_is_not_known_is_forgotten_in_vain() -> None:
    replays = filled(b"twin", [NOW + 60], 10)
    replays.forget(b"twin", b"other")
    replays.forget(b"other", b"twin-0")
    assert replays.knows(b"twin-0", NOW)
    replays.forget(b"twin", b"twin-0")
    assert len(replays) == 0


messages = st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 30), st.integers(1, 40))


@given(st.lists(st.tuples(messages, st.integers(-5, 10)), max_size=60), st.integers(1, 8))
def test_nothing_is_accepted_twice_whatever_the_order_and_the_clock(
    steps: list[tuple[tuple[bytes, int, int], int]], remembered: int
) -> None:
    replays, now, accepted = ReplayCache(remembered), NOW, set()
    for (source, sent, life), pause in steps:
        now += pause
        end, signature = NOW + sent + life, b"%s-%d-%d" % (source, sent, life)
        if end <= now or replays.knows(signature, now):
            continue
        if replays.add(source, signature, end, now):
            assert signature not in accepted
            accepted.add(signature)
        assert len(replays) <= remembered
