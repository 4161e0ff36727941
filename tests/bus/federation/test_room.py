"""Relays that are down have a part of the room for what waits, and others have the rest."""

from __future__ import annotations

from wsmux.bus.federation.room import DOWN, Room


def filled(room: Room, domain: str, count: int, size: int = 1) -> None:
    for _ in range(count):
        room.add((domain,), size)


def test_a_relay_that_answers_may_have_all() -> None:
    room = Room(4, 100)
    filled(room, "a", 4)
    assert room.is_full()
    assert room.left() == 0
    assert not room.is_crowded(("a",), 1000.0)


def test_a_relay_that_is_down_has_half() -> None:
    room = Room(4, 100)
    filled(room, "a", 3)
    room.failed("a", 5.0)
    room.failed("a", 14.0)
    assert not room.is_crowded(("a",), 4.9 + DOWN)
    assert room.is_crowded(("a",), 5.0 + DOWN)
    room.remove(("a",), 1)
    assert not room.is_crowded(("a",), 5.0 + DOWN)


def test_bytes_count_too() -> None:
    room = Room(100, 10)
    room.add(("a",), 6)
    room.failed("a", 0.0)
    assert room.is_crowded(("a",), DOWN)
    assert not room.is_full()
    room.add(("b",), 4)
    assert room.is_full()


def test_relays_that_are_down_have_equal_parts() -> None:
    room = Room(100, 1000)
    for domain in "abcde":
        filled(room, domain, 11)
        room.failed(domain, 0.0)
    filled(room, "f", 10)
    room.failed("f", 0.0)
    assert room.is_crowded(("a",), DOWN)
    assert room.is_crowded(("f",), DOWN)
    filled(room, "g", 1)
    for domain in "abcd":
        room.answered(domain)
        room.answered(domain)
    assert not room.is_crowded(("f",), DOWN)


def test_a_relay_that_has_failed_a_moment_ago_has_no_part() -> None:
    """Or the restart of many would take from those that are down, of which each gets too little."""
    room = Room(100, 1000)
    filled(room, "a", 50)
    room.failed("a", 0.0)
    for domain in "bcdef":
        filled(room, domain, 1)
        room.failed(domain, 5.0)
    assert not room.is_crowded(("a",), DOWN)
    assert not room.is_crowded(("a", "b"), DOWN)
    assert room.is_crowded(("a",), 5.0 + DOWN)
    room.failed("a", 5.0 + DOWN)
    for domain in "bcdef":
        room.answered(domain)
    assert not room.is_crowded(("a",), 6.0 + DOWN)


def test_a_message_that_another_relay_may_take_is_not_in_the_way() -> None:
    room = Room(4, 100)
    filled(room, "a", 4)
    room.failed("a", 0.0)
    assert room.is_crowded(("a",), DOWN)
    assert not room.is_crowded(("a", "b"), DOWN)
    room.add(("a", "b"), 1)
    assert not room.is_crowded(("a", "b"), DOWN)
    assert not room.is_crowded((), DOWN)


def test_a_relay_for_which_nothing_waits_is_forgotten() -> None:
    room = Room(4, 100)
    room.failed("a", 0.0)
    room.answered("a")
    filled(room, "a", 3)
    assert not room.is_crowded(("a",), DOWN)
    room.failed("a", 0.0)
    for _ in range(3):
        room.remove(("a",), 1)
    assert (room.count, room.bytes) == (0, 0)
    filled(room, "a", 3)
    room.failed("b", 0.0)
    assert not room.is_crowded(("a",), DOWN)
    assert room.left() == 1
