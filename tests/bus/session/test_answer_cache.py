"""Answers are kept by their requests, the newest within both limits."""

from __future__ import annotations

from wsmux.bus.session.answer_cache import AnswerCache


def test_an_answer_is_found_by_its_request_alone() -> None:
    cache = AnswerCache()
    cache.keep((1, "a"), b"one")
    assert (cache.find((1, "a")), cache.find((1, "b"))) == (b"one", None)


def test_a_later_answer_replaces_an_earlier_one() -> None:
    cache = AnswerCache(max_bytes=6)
    cache.keep("a", b"12345")
    cache.keep("a", b"67890")
    cache.keep("b", b"!")
    assert (cache.find("a"), cache.find("b")) == (b"67890", b"!")


def test_above_the_count_the_oldest_goes() -> None:
    cache = AnswerCache(max_count=2)
    for request in ("a", "b", "c"):
        cache.keep(request, b"answer")
    assert [cache.find(request) for request in ("a", "b", "c")] == [None, b"answer", b"answer"]


def test_above_the_bytes_the_oldest_go() -> None:
    cache = AnswerCache(max_bytes=10)
    for request in ("a", "b", "c"):
        cache.keep(request, b"1234")
    cache.keep("d", b"1234567890")
    assert [cache.find(request) for request in ("a", "b", "c")] == [None] * 3
    assert cache.find("d") == b"1234567890"


def test_an_answer_above_the_bytes_is_not_kept() -> None:
    cache = AnswerCache(max_bytes=3)
    cache.keep("a", b"1234")
    cache.keep("b", b"123")
    assert (cache.find("a"), cache.find("b")) == (None, b"123")
