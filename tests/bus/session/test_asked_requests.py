"""A gateway remembers what it was asked, in a bounded number of bytes."""

from __future__ import annotations

import tracemalloc

import pytest

from wsmux.bus.session import asked_requests
from wsmux.bus.session.asked_requests import AskedRequests


def test_requests_that_were_encrypted_are_told_from_others() -> None:
    asked = AskedRequests()
    asked.note("a", "1", encrypted=True)
    asked.note("b", "1", encrypted=False)
    assert asked.was_encrypted("a", "1")
    assert not asked.was_encrypted("a", "2")
    assert not asked.was_encrypted("b", "1")


def test_the_oldest_request_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_requests, "MAX_REQUESTS", 2)
    asked = AskedRequests()
    for uid in "abc":
        asked.note(uid, "1", encrypted=True)
    assert [asked.was_encrypted(uid, "1") for uid in "abc"] == [False, True, True]


def test_long_uids_and_sessions_are_not_remembered_whole() -> None:
    asked = AskedRequests()
    long = "x" * 100_000
    tracemalloc.start()
    try:
        for number in range(200):
            asked.note(f"{long}{number}", f"1:{long}{number}", encrypted=True)
            asked.answered(f"{long}{number}", f"1:{long}{number}", b"answer")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000
    assert asked.was_encrypted(f"{long}199", f"1:{long}199")
    assert asked.answer(f"{long}199", f"1:{long}199") == b"answer"
