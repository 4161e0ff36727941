"""The log in a directory: whole entries, one of each number, nothing forgotten."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.store.commit_log import BETWEEN_STATES, CommitLog, Start


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    return CommitLog(tmp_path, "log", sync=False)


def filled(log: CommitLog, count: int) -> None:
    for number in range(count):
        assert log.append(number, {"n": number})
        log.keep_state(number, lambda: {"sum": 1})


def test_entries_are_read_back(log: CommitLog) -> None:
    assert log.start() == Start(-1, None, -1)
    assert log.append(0, {"a": [1, "é"]})
    assert log.entry(0) == {"a": [1, "é"]}
    assert log.entry(1) is None
    assert log.holds(0)
    assert not log.holds(1)
    assert log.start() == Start(-1, None, 0)


def test_an_entry_is_there_once(log: CommitLog) -> None:
    assert log.append(0, {"a": 1})
    assert not log.append(0, {"a": 2})
    assert log.entry(0) == {"a": 1}
    assert os.listdir(log.path) == ["00000000000000000000.json"]


def test_of_many_who_append_one_wins(log: CommitLog) -> None:
    ready, won = threading.Barrier(8), []

    def append(me: int) -> None:
        ready.wait(10)
        if log.append(0, {"me": me}):
            won.append(me)

    threads = [threading.Thread(target=append, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert log.entry(0) == {"me": won[0]}
    assert len(won) == 1


def test_a_state_is_kept_now_and_then_and_old_entries_go(log: CommitLog) -> None:
    filled(log, 2 * BETWEEN_STATES + 3)
    start = log.start()
    assert start.state == {"sum": 1}
    assert start.number == 2 * BETWEEN_STATES - 1
    assert start.highest == 2 * BETWEEN_STATES + 2
    assert log.holds(start.number), "by this one who was there last knows"
    assert not log.holds(start.number - 1)
    assert len(os.listdir(log.path)) == 5


def test_a_large_state_is_kept_less_often(log: CommitLog) -> None:
    kept = []
    for number in range(4 * BETWEEN_STATES):
        log.append(number, {"n": number})
        log.keep_state(number, lambda: kept.append(1) or {"large": "x" * 1000})
    assert len(kept) < 4
    assert log.start().state == {"large": "x" * 1000}


def test_what_is_being_written_is_not_looked_at(log: CommitLog) -> None:
    log.append(0, {})
    (log.path / ".0123").write_text("half")
    assert log.start() == Start(-1, None, 0)


BAD = {
    "garbage": b"\x00\xff",
    "half": b'{"a":',
    "list": b"[]",
    "empty": b"",
    "deep": b"[" * 30_000,
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_a_damaged_entry_is_named(log: CommitLog, data: bytes) -> None:
    (log.path / "00000000000000000000.json").write_bytes(data)
    with pytest.raises(RiverError, match="log/0{20}.json is damaged") as caught:
        log.entry(0)
    assert caught.value.code == "CORRUPT"


def test_a_damaged_state_is_named(log: CommitLog) -> None:
    (log.path / "00000000000000000009.state.json").write_bytes(b"{")
    with pytest.raises(RiverError, match=r"log/0{19}9\.state\.json is damaged"):
        log.start()


def test_what_does_not_belong_there_is_named(log: CommitLog) -> None:
    (log.path / "notes.txt").write_text("hello")
    with pytest.raises(RiverError, match=r"log/notes\.txt does not belong here"):
        log.start()


def test_a_link_is_not_followed(log: CommitLog, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "entry.json"
    outside.write_text('{"a": 1}')
    (log.path / "00000000000000000000.json").symlink_to(outside)
    with pytest.raises(RiverError, match="cannot be read"):
        log.entry(0)


def test_a_directory_or_a_pipe_is_no_entry(log: CommitLog) -> None:
    (log.path / "00000000000000000000.json").mkdir()
    os.mkfifo(log.path / "00000000000000000001.json")
    for number in (0, 1):
        with pytest.raises(RiverError, match="is not a file"):
            log.entry(number)


def test_a_log_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(RiverError, match="log is missing"):
        CommitLog(tmp_path / "none", "log").start()
