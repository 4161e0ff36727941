"""A directory as a store: what is damaged or foreign is named, and nothing outside is touched."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.store import commit_log as log_module
from wsmux.spark.store.directory_stores import DirectoryTopics, open_directory

from ...helpers.spark.arrow_data import SCHEMA, rows
from ...helpers.spark.topics import held

pytestmark = pytest.mark.spark


def staged(store: DirectoryTopics, name: str, start: int, batch: int | None = None) -> Any:
    """Stage ten rows as a batch; return its transaction and receipt."""
    txn = store.begin(name, "q", start // 10 if batch is None else batch, SCHEMA).txn
    part = store.open_part(txn, 0, 0, SCHEMA)
    part.write(rows(start, 10))
    return txn, part.finish(1, 1)


def write(store: DirectoryTopics, name: str, start: int) -> None:
    """Commit ten rows."""
    txn, receipt = staged(store, name, start)
    store.commit(txn, [receipt])


def read(store: DirectoryTopics, name: str) -> list[int]:
    return held(store, name)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    store = topics(tmp_path / "store")
    store.create("d", SCHEMA)
    store.create("other", SCHEMA)
    for start in (0, 10, 20):
        write(store, "d", start)
    write(store, "other", 0)
    return tmp_path / "store"


def topics(directory: Path, **options: Any) -> DirectoryTopics:
    return DirectoryTopics(directory, sync=False, **options)


def entry(directory: Path, number: int, name: str = "d") -> Path:
    return directory / "topics" / name / "_log" / f"{number:020d}.json"


def part(directory: Path) -> Path:
    return min((directory / "topics" / "d" / "parts").glob("*/*.parquet"))


# Which directory


def test_an_empty_directory_becomes_a_store(tmp_path: Path) -> None:
    open_directory(tmp_path / "a" / "b")
    open_directory(tmp_path / "a" / "b")
    names = {path.name for path in (tmp_path / "a" / "b").iterdir()}
    assert names == {"datasets", "topics", "wsmux-store.json"}


def test_a_directory_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(RiverError, match="is no store"):
        DirectoryTopics(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_store_of_another_layout_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "wsmux-store.json").write_text('{"layout": 99}')
    with pytest.raises(RiverError, match="layout that is not known"):
        DirectoryTopics(tmp_path)


def test_a_link_to_a_store_is_a_store(directory: Path) -> None:
    directory.with_name("link").symlink_to(directory)
    assert read(topics(directory.with_name("link")), "other") == list(range(10))


def test_a_format_has_a_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format must be one of parquet, arrow"):
        DirectoryTopics(tmp_path, file_format="csv")


def test_files_of_both_formats_are_read(directory: Path) -> None:
    write(topics(directory, file_format="arrow"), "d", 30)
    assert read(topics(directory), "d") == list(range(40))


# Damage


def link_outside(path: Path) -> None:
    """Put a link to somewhere else in the place of a file or directory."""
    root = next(each for each in path.parents if each.name == "store").parent
    outside = root / "outside"
    shutil.move(path, outside)
    path.symlink_to(outside)


def topic(directory: Path) -> Path:
    return directory / "topics" / "d"


def log(directory: Path) -> Path:
    return topic(directory) / "_log"


def put(path: Path, data: bytes) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.write_bytes(data)


def no_commit(directory: Path, **change: Any) -> None:
    """Change fields of the newest entry."""
    path = entry(directory, 3)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


WORTHLESS = [{"file": "../../x", "rows": 10, "bytes": 1, "groups": [10]}]

LOG_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "garbage": (lambda d: put(entry(d, 2), b"\x00\xff"), "_log/0{19}2.json is damaged"),
    "half": (lambda d: put(entry(d, 2), b'{"kind":"commit"'), "_log/0{19}2.json is damaged"),
    "empty": (lambda d: put(entry(d, 3), b""), "_log/0{19}3.json is damaged"),
    "no entry": (lambda d: put(entry(d, 2), b'{"kind":"commit"}'), "_log/0{19}2.json is damaged"),
    "no kind": (lambda d: put(entry(d, 2), b"{}"), "_log/0{19}2.json is damaged"),
    "of another": (lambda d: shutil.copy(entry(d, 1, "other"), entry(d, 4)), "4.json is damaged"),
    "gap": (lambda d: entry(d, 1).unlink(), "_log/0{19}1.json is missing"),
    "no beginning": (lambda d: entry(d, 0).unlink(), "_log/0{19}0.json is missing"),
    "foreign": (lambda d: put(log(d) / "x.txt", b""), "_log/x.txt does not belong here"),
    "name": (lambda d: no_commit(d, files=WORTHLESS), r"damaged.*there is no file '\.\./\.\./x'"),
    "state": (lambda d: put(log(d) / f"{3:020d}.state.json", b"{}"), "3.state.json is damaged"),
    "no log": (lambda d: shutil.rmtree(log(d)), "topics/d/_log is missing"),
    "log a file": (lambda d: put(log(d), b""), "topics/d/_log is a file"),
    "log a link": (lambda d: link_outside(log(d)), "topics/d/_log is a symbolic link"),
    "no parts": (lambda d: shutil.rmtree(topic(d) / "parts"), "topics/d/parts is missing"),
    "a file": (lambda d: put(topic(d), b""), "topics/d is a file"),
    "a link": (lambda d: link_outside(topic(d)), "topics/d is a symbolic link"),
}

PART_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "part garbage": (lambda d: put(part(d), b"garbage"), "parquet is damaged"),
    "part empty": (lambda d: put(part(d), b""), "parquet is damaged"),
    "part cut": (lambda d: put(part(d), part(d).read_bytes()[:-9]), "parquet is damaged"),
    "part missing": (lambda d: part(d).unlink(), "parquet is missing"),
    "part a link": (lambda d: link_outside(part(d)), "parquet is not a file of the store"),
    "parts a link": (lambda d: link_outside(part(d).parent), "is not a file of the store"),
}


@pytest.mark.parametrize("case", LOG_DAMAGE | PART_DAMAGE)
def test_damage_is_named_and_the_rest_goes_on(directory: Path, case: str) -> None:
    damage, words = (LOG_DAMAGE | PART_DAMAGE)[case]
    damage(directory)
    before = sorted(directory.rglob("*"))
    store = topics(directory)
    with pytest.raises(RiverError, match=words) as caught:
        read(store, "d")
    assert caught.value.code == "CORRUPT"
    assert str(directory) not in caught.value.message
    store.expire(time.time() + 10**9)
    assert sorted(directory.rglob("*")) == before, "what cannot be understood is not swept"
    write(store, "other", 10)
    assert read(store, "other") == list(range(20))


@pytest.mark.parametrize("case", LOG_DAMAGE)
def test_a_damaged_log_takes_no_commit(directory: Path, case: str) -> None:
    LOG_DAMAGE[case][0](directory)
    with pytest.raises(RiverError) as caught:
        write(topics(directory), "d", 30)
    assert caught.value.code == "CORRUPT"


# Staging and time


def key(txn: str) -> str:
    return txn.rpartition(":")[2]


def tree(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def test_a_sweep_removes_what_no_version_holds(directory: Path) -> None:
    store = topics(directory)
    kept = tree(directory)
    txn, _ = staged(store, "d", 0, batch=9)
    unfinished = store.open_part(txn, 1, 0, SCHEMA)
    unfinished.write(rows(0, 1))
    home = topic(directory)
    (home / "_log" / ".0123").write_text("of a process that is no more")
    (home / "parts" / ".0123").mkdir()
    (directory / "topics" / f"~{'0' * 32}" / "_log").mkdir(parents=True)
    loser = part(directory).parent / "p9-9-x"
    loser.write_text("finished after its transaction was committed")
    store.expire(time.time())
    assert {f"topics/d/parts/{key(txn)}", "topics/d/_log/.0123"} < tree(directory)
    store.expire(time.time() + 10**6)
    unfinished.discard()
    assert tree(directory) == kept | {"topics/d/_lock", "topics/other/_lock"}


def test_losers_go_with_the_commit(directory: Path) -> None:
    store = topics(directory)
    txn = store.begin("d", "q", 9, SCHEMA).txn
    receipts = []
    for attempt in range(3):
        staging = store.open_part(txn, 0, attempt, SCHEMA)
        staging.write(rows(0, 1))
        receipts.append(staging.finish(1, 1))
    store.commit(txn, receipts[1:2])
    left = os.listdir(topic(directory) / "parts" / key(txn))
    assert sorted(left) == sorted(["txn.json", receipts[1].file, f"{receipts[1].file}.json"])


# Several at once


def test_a_process_that_was_away_for_long_catches_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "BETWEEN_STATES", 3)
    away, here = topics(directory), topics(directory)
    assert read(away, "d") == list(range(30))
    for start in range(30, 200, 10):
        write(here, "d", start)
    assert not entry(directory, 0).exists(), "old entries were dropped"
    assert read(away, "d") == list(range(200))
    write(away, "d", 200)
    assert read(here, "d") == list(range(210))
    assert read(topics(directory), "d") == list(range(210))


def test_a_topic_that_was_removed_and_made_again_is_another_one(directory: Path) -> None:
    store = topics(directory)
    assert read(store, "d") == list(range(30))
    shutil.rmtree(topic(directory))
    with pytest.raises(RiverError, match="there is no topic d"):
        store.describe("d")
    other = topics(directory)
    other.create("d", SCHEMA)
    for start in range(70, 150, 10):  # more than there were, so that numbers tell nothing
        write(other, "d", start)
    assert read(store, "d") == list(range(70, 150))


def test_a_commit_cut_short_is_done_by_the_next(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies when the entry is there, before it could answer or tidy up."""
    store = topics(directory)
    txn, receipt = staged(store, "d", 30)
    link = os.link

    def die(*names: Any) -> None:
        link(*names)
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(os, "link", die)
        with pytest.raises(KeyboardInterrupt):
            store.commit(txn, [receipt])
    again = topics(directory)
    assert read(again, "d") == list(range(40))
    assert again.commit(txn, [receipt]).version == 4
    assert read(again, "d") == read(store, "d") == list(range(40))


def test_a_commit_that_waits_in_vain_says_so_and_can_be_made_again(directory: Path) -> None:
    store = topics(directory, lock_timeout=0.05)
    txn, receipt = staged(store, "d", 30)
    with (directory / "topics" / "d" / "_lock").open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(RiverError, match=r"topics/d/_lock was held .* for 0\.05 s") as caught:
            store.commit(txn, [receipt])
        assert caught.value.code == "BUSY"
        write(store, "other", 10)  # another topic goes on
        store.expire(time.time())  # so do sweeps, with a warning
        assert read(store, "d") == list(range(30))
    assert store.commit(txn, [receipt]).version == 4
    assert read(store, "d") == list(range(40))


def test_a_lock_timeout_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lock_timeout must be above 0, not 0"):
        DirectoryTopics(tmp_path, lock_timeout=0)


def test_a_damaged_offset_is_named(directory: Path) -> None:
    (directory / "topics" / "d" / "queries").mkdir()
    (directory / "topics" / "d" / "queries" / f"{'0' * 32}.json").write_text('{"offsets": "x"}')
    with pytest.raises(RiverError, match=r"queries/0{32}\.json is damaged"):
        topics(directory).release("d", "q", [0])


def test_what_is_safe_from_a_crash_reads_the_same(tmp_path: Path) -> None:
    store = DirectoryTopics(tmp_path, sync=True)
    store.create("d", SCHEMA)
    write(store, "d", 0)
    assert read(DirectoryTopics(tmp_path), "d") == list(range(10))
