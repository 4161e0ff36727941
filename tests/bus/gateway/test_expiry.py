"""When requests expire."""

from __future__ import annotations

from wsmux.bus.gateway.expiry import Expiry


def test_what_has_expired_is_taken_once_and_in_order() -> None:
    expiry = Expiry()
    for uid, end in (("b", 2), ("a", 1), ("c", 3)):
        expiry.add(uid, end)
    assert expiry.take(0) == []
    assert expiry.take(2) == ["a", "b"]
    assert expiry.take(2) == []
    assert expiry.take(3) == ["c"]


def test_what_was_answered_does_not_expire() -> None:
    expiry = Expiry()
    for number in range(1000):
        expiry.add(str(number), number)
    for number in range(999):
        expiry.remove(str(number))
    expiry.remove("unknown")
    assert len(expiry._heap) < 200
    assert expiry.take(1000) == ["999"]


def test_what_was_sent_again_is_remembered_until_its_end() -> None:
    expiry = Expiry()
    for uid in ("answered", "expired"):
        expiry.add(uid, 1)
        expiry.note_resent(uid)
    expiry.note_resent("unknown")
    assert [expiry.was_resent(uid) for uid in ("answered", "expired", "unknown")] == [True] * 2 + [
        False
    ]
    expiry.remove("answered")
    expiry.take(1)
    assert not expiry.was_resent("answered")
    assert not expiry.was_resent("expired")


def test_a_later_end_replaces_an_earlier_one() -> None:
    expiry = Expiry()
    expiry.add("a", 1)
    expiry.add("a", 2)
    expiry.add("a", 2)
    assert expiry.take(1) == []
    assert expiry.take(2) == ["a"]
    assert expiry.take(3) == []
