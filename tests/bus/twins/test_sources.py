"""Twins come from a file as it is now, from the next source when one fails, once for many."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from wsmux.bus.errors import TwinsUnavailable
from wsmux.bus.twins import sources
from wsmux.bus.twins.http import HttpTwins
from wsmux.bus.twins.records import Twin, twin_record
from wsmux.bus.twins.sources import MAX_FILE, CachedTwins, Failover, FileTwins, twins_from
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.captured import TWINS, identity
from ...helpers.bus.directories import Listed
from ...helpers.timeouts import WAIT
from ...helpers.waiting import wait_for

RECORDS = [twin_record(twin) for twin in TWINS.values()]


def soon() -> Deadline:
    return Deadline(WAIT)


def put(path: Path, value: Any) -> None:
    """Replace a file as one should: at once."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    other = path.with_suffix(".new")
    other.write_bytes(data)
    other.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "twins.json"
    put(path, RECORDS)
    return path


def test_a_file_tells_of_its_twins(path: Path) -> None:
    twins = FileTwins(path)
    assert [twins.get(number, soon()) for number in TWINS] == list(TWINS.values())


def test_a_file_tells_of_no_others(path: Path) -> None:
    twins = FileTwins(path)
    assert twins.get(99, soon()) is None
    assert twins.find(bytes(32), soon()) is None


def test_a_file_finds_accounts(path: Path) -> None:
    assert FileTwins(path).find(TWINS[3].account, soon()) == TWINS[3]


def test_the_first_twin_of_an_account_is_found(path: Path) -> None:
    put(path, [*RECORDS, {**RECORDS[0], "id": 9}])
    assert FileTwins(path).find(TWINS[1].account, soon()) == TWINS[1]


def test_a_file_is_read_again_when_it_has_changed(path: Path) -> None:
    twins = FileTwins(path)
    assert twins.get(1, soon()) is not None
    put(path, RECORDS[1:])
    assert twins.get(1, soon()) is None


def test_a_file_that_has_not_changed_is_not_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = FileTwins(path)
    twins.get(1, soon())
    monkeypatch.setattr(twins, "_parse", None)
    assert twins.get(1, soon()) == TWINS[1]


def test_a_file_that_was_mended_is_read(path: Path) -> None:
    twins = FileTwins(path)
    put(path, b"[")
    with pytest.raises(TwinsUnavailable):
        twins.get(1, soon())
    put(path, RECORDS)
    assert twins.get(1, soon()) == TWINS[1]


def test_a_file_that_was_spoiled_no_longer_counts(path: Path) -> None:
    twins = FileTwins(path)
    twins.get(1, soon())
    put(path, b"[")
    for _ in range(2):
        with pytest.raises(TwinsUnavailable):
            twins.get(1, soon())


def test_a_file_may_be_empty_of_twins(path: Path) -> None:
    put(path, [])
    assert FileTwins(path).get(1, soon()) is None


BAD_FILES: dict[str, tuple[Any, str]] = {
    "nothing": (b"", "is not JSON"),
    "half a list": (b'[{"id": 1,', "is not JSON"),
    "text": (b"twins", "is not JSON"),
    "no UTF-8": (b'["\xff"]', "is not JSON"),
    "nested without end": (b"[" * 100_000, "is not JSON"),
    "an object": ({"twins": RECORDS}, "is not a list of twins"),
    "null": (None, "is not a list of twins"),
    "a twin alone": (RECORDS[0], "is not a list of twins"),
    "a list of numbers": ([1], "entry 0: a twin must be an object"),
    "a twin twice": ([RECORDS[0], RECORDS[0]], "entry 1: twin 1 is listed twice"),
    "a bad account": (
        [RECORDS[0], {"id": 2, "account": "x"}],
        "entry 1: 'x' is not an SS58 address",
    ),
    "a twin without a number": ([{"account": "x"}], "entry 0: a twin's id must be a number"),
    "too long": (b" " * (MAX_FILE + 1), f"has more than {MAX_FILE} bytes"),
}


@pytest.mark.parametrize("why", BAD_FILES)
def test_a_bad_file_is_named_with_its_mistake(path: Path, why: str) -> None:
    content, sentence = BAD_FILES[why]
    put(path, content)
    with pytest.raises(TwinsUnavailable, match=rf"twins\.json.* {sentence}"):
        FileTwins(path).get(1, soon())


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    twins = FileTwins(os.fspath(tmp_path / name))
    with pytest.raises(TwinsUnavailable, match="cannot be read: (No such file|Is a directory)"):
        twins.get(1, soon())


def two() -> tuple[Listed, Listed, Failover]:
    first, second = Listed("first", dict(TWINS)), Listed("second", dict(TWINS))
    return first, second, Failover([first, second])


def test_one_source_is_held_while_it_answers() -> None:
    first, second, both = two()
    for number in (1, 2, 3):
        both.get(number, soon())
    assert (first.asked, second.asked) == ([1, 2, 3], [])


def test_the_next_source_is_taken_and_held_after_a_failure() -> None:
    first, second, both = two()
    first.failing = True
    assert both.get(1, soon()) == TWINS[1]
    first.failing = False
    assert both.get(2, soon()) == TWINS[2]
    assert (first.asked, second.asked) == ([1], [1, 2])


def test_the_first_source_is_taken_again_when_the_second_fails() -> None:
    first, second, both = two()
    first.failing = True
    both.get(1, soon())
    first.failing, second.failing = False, True
    assert both.get(2, soon()) == TWINS[2]


def test_an_unknown_twin_is_no_failure() -> None:
    first, second, both = two()
    assert both.get(99, soon()) is None
    assert not second.asked


def test_each_source_is_tried_twice_and_then_all_are_named() -> None:
    first, second, both = two()
    first.failing = second.failing = True
    with pytest.raises(TwinsUnavailable, match="none of first, second answered: second is down"):
        both.find(TWINS[1].account, soon())
    assert len(first.asked) == len(second.asked) == 2


def test_no_source_is_asked_for_longer_than_12_seconds() -> None:
    first, _, both = two()
    both.get(1, Deadline(None))
    both.get(1, Deadline(1000))
    assert all(limit is not None and 10 < limit <= 12 for limit in first.limits)


def test_no_source_is_asked_when_no_time_is_left() -> None:
    first, _, both = two()
    with pytest.raises(TwinsUnavailable, match="no time was left"):
        both.get(1, Deadline(0))
    assert not first.asked


def test_a_source_is_left_once_by_threads_that_fail_together() -> None:
    _, _, both = two()
    both._leave(0)
    both._leave(0)
    assert both._held == 1


def test_what_is_written_goes_to_the_source_that_is_held() -> None:
    first, second, both = two()
    first.writable = True
    assert both.update(identity("alice"), iter(["a.test", "b.test"]), None, soon())
    assert (first.written, second.written) == ([("a.test", "b.test")], [])


def test_what_is_written_is_whole_at_the_next_source() -> None:
    first, second, both = two()
    first.failing = second.writable = True
    assert both.update(identity("alice"), iter(["a.test", "b.test"]), None, soon())
    assert second.written == [("a.test", "b.test")]


def test_closing_closes_every_source() -> None:
    first, second, both = two()
    both.close()
    assert first.closed
    assert second.closed


def test_no_source_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="name at least one directory"):
        Failover([])


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_twin_is_asked_for_once() -> None:
    listed = Listed("slow", dict(TWINS))
    cached = CachedTwins(listed)
    assert [cached.get(1, soon()) for _ in range(3)] == [TWINS[1]] * 3
    assert listed.asked == [1]


@pytest.mark.parametrize(("seconds", "questions"), [(299.9, 1), (300, 2)])
def test_a_twin_is_asked_for_again_when_its_life_is_over(seconds: float, questions: int) -> None:
    listed, clock = Listed("slow", dict(TWINS)), Clock()
    cached = CachedTwins(listed, clock=clock)
    cached.get(1, soon())
    clock.now += seconds
    cached.get(1, soon())
    assert len(listed.asked) == questions


def test_a_twin_that_is_gone_is_not_told_of_when_its_life_is_over() -> None:
    listed, clock = Listed("slow", dict(TWINS)), Clock()
    cached = CachedTwins(listed, clock=clock)
    cached.get(1, soon())
    listed.twins.clear()
    clock.now += 300
    assert [cached.get(1, soon()) for _ in range(2)] == [None, None]


def test_a_twin_that_was_not_found_is_asked_for_again() -> None:
    listed = Listed("slow")
    cached = CachedTwins(listed)
    assert cached.get(1, soon()) is None
    listed.twins.update(TWINS)
    assert cached.get(1, soon()) == TWINS[1]


def test_the_twin_used_least_recently_goes() -> None:
    listed = Listed("slow", dict(TWINS))
    cached = CachedTwins(listed, size=2)
    for number in (1, 2, 1, 3, 1, 2):
        cached.get(number, soon())
    assert listed.asked == [1, 2, 3, 2]


def test_a_twin_found_by_its_account_is_kept() -> None:
    listed = Listed("slow", dict(TWINS))
    cached = CachedTwins(listed)
    assert cached.find(TWINS[1].account, soon()) == TWINS[1]
    cached.get(1, soon())
    assert listed.asked == [TWINS[1].account]


def test_an_account_that_is_unknown_is_not_kept() -> None:
    assert CachedTwins(Listed("slow")).find(bytes(32), soon()) is None


@pytest.mark.parametrize("failing", [False, True])
def test_a_twin_that_was_written_is_asked_for_again(failing: bool) -> None:
    listed = Listed("slow", dict(TWINS))
    cached = CachedTwins(listed)
    cached.get(1, soon())
    cached.get(2, soon())
    listed.failing = failing
    if failing:
        with pytest.raises(TwinsUnavailable):
            cached.update(identity("alice"), ["a.test"], None, soon())
    else:
        assert not cached.update(identity("alice"), ["a.test"], None, soon())
    listed.failing = False
    listed.asked.clear()
    cached.get(1, soon())
    cached.get(2, soon())
    assert listed.asked == [1]


def test_closing_the_cache_closes_the_source() -> None:
    listed = Listed("slow")
    CachedTwins(listed).close()
    assert listed.closed


class Gated(Listed):
    """Answer when the test lets it."""

    def __init__(self) -> None:
        super().__init__("gated", dict(TWINS))
        self.gate = threading.Event()

    def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
        self.asked.append(twin_id)
        assert self.gate.wait(WAIT)
        if self.failing:
            raise TwinsUnavailable("gated is down")
        return self.twins.get(twin_id)


class Joined:
    """Count the threads that wait for what another one asked."""

    def __init__(self, cached: CachedTwins, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting = 0
        self._lock = threading.Lock()
        self._join = cached._join
        monkeypatch.setattr(cached, "_join", self._counted)

    def _counted(self, *arguments: Any) -> Twin | None:
        with self._lock:
            self.waiting += 1
        return self._join(*arguments)


def test_misses_at_once_are_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    gated = Gated()
    cached = CachedTwins(gated)
    joined = Joined(cached, monkeypatch)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(cached.get, 1, soon()) for _ in range(8)]
        wait_for(lambda: joined.waiting == 7)
        gated.gate.set()
        assert [answer.result(WAIT) for answer in answers] == [TWINS[1]] * 8
    assert gated.asked == [1]


def test_a_failure_is_told_to_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    gated = Gated()
    gated.failing = True
    cached = CachedTwins(gated)
    joined = Joined(cached, monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(cached.get, 1, soon()) for _ in range(4)]
        wait_for(lambda: joined.waiting == 3)
        gated.gate.set()
        failures = [answer.exception(WAIT) for answer in answers]
    assert [str(failure) for failure in failures] == [str(TwinsUnavailable("gated is down"))] * 4
    assert len({id(failure) for failure in failures}) == 4


def test_a_question_that_failed_is_asked_again() -> None:
    listed = Listed("slow", dict(TWINS))
    cached = CachedTwins(listed)
    listed.failing = True
    with pytest.raises(TwinsUnavailable):
        cached.get(1, soon())
    listed.failing = False
    assert cached.get(1, soon()) == TWINS[1]


def test_who_waits_does_so_until_its_own_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    gated = Gated()
    cached = CachedTwins(gated)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(cached.get, 1, soon())
        wait_for(lambda: gated.asked == [1])
        with pytest.raises(TwinsUnavailable, match="gated did not return twin 1 in time"):
            cached.get(1, Deadline(0.01))
        gated.gate.set()
        assert answer.result(WAIT) == TWINS[1]


@pytest.mark.parametrize("seconds", [None, 1800.0])
def test_no_look_up_takes_longer_than_12_seconds(seconds: float | None) -> None:
    """Others join it, so it must not hang for as long as the message that began it lives."""
    listed = Listed("slow", dict(TWINS))
    cached = CachedTwins(listed)
    cached.get(1, Deadline(seconds))
    cached.find(TWINS[2].account, Deadline(seconds))
    assert len(listed.limits) == 2
    assert all(limit is not None and 10 < limit <= 12 for limit in listed.limits)


def test_a_cache_leaves_several_sources_the_time_that_they_need() -> None:
    first, second, both = two()
    first.failing = second.failing = True
    with pytest.raises(TwinsUnavailable):
        CachedTwins(both).get(1, Deadline(1000))
    assert len(first.limits) == len(second.limits) == 2
    assert all(limit is not None and 10 < limit <= 12 for limit in second.limits)


def test_a_question_that_hangs_is_asked_again_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Hanging(Listed):
        def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
            self.asked.append(twin_id)
            if len(self.asked) == 1:
                threading.Event().wait(deadline.remaining())
                raise TwinsUnavailable("hanging did not answer in time")
            return self.twins.get(twin_id)

    monkeypatch.setattr(sources, "TRY_SECONDS", 0.05)
    cached = CachedTwins(Hanging("hanging", dict(TWINS)))
    with pytest.raises(TwinsUnavailable, match="did not answer in time"):
        cached.get(1, Deadline(WAIT))
    assert cached.get(1, soon()) == TWINS[1]


def test_other_twins_do_not_wait() -> None:
    gated = Gated()
    cached = CachedTwins(gated)
    cached._keep_locked(TWINS[2])
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(cached.get, 1, soon())
        wait_for(lambda: gated.asked == [1])
        assert cached.get(2, soon()) == TWINS[2]
        gated.gate.set()
        answer.result(WAIT)


def test_a_path_is_a_file(path: Path) -> None:
    assert isinstance(twins_from([os.fspath(path)]), FileTwins)
    assert isinstance(twins_from([path]), FileTwins)


def test_several_paths_are_asked_in_turn(path: Path) -> None:
    twins = twins_from(["missing.json", os.fspath(path)])
    assert isinstance(twins, Failover)
    assert twins.get(1, soon()) == TWINS[1]


@pytest.mark.parametrize("url", ["http://registrar.test", "https://registrar.test/v1/"])
def test_a_url_is_a_registrar_through_a_cache(url: str) -> None:
    twins = twins_from([url])
    assert isinstance(twins, CachedTwins)
    assert isinstance(twins._directory, HttpTwins)
    twins.close()


@pytest.mark.parametrize("text", ["ftp://a", "redis://a", "HTTP://a", "://", "file:///twins.json"])
def test_another_url_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a file, http"):
        twins_from([text])


def test_no_text_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="name at least one directory"):
        twins_from([])
