"""A directory of topics: what is damaged or foreign is named, and nothing outside is touched."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.store.base import Retention
from wsmux.spark.topics import sqlite_topics, upkeep
from wsmux.spark.topics.sqlite_topics import SqliteTopics

from ...helpers.spark.arrow_data import SCHEMA, rows
from ...helpers.spark.clients import WAIT
from ...helpers.spark.inside import database_of
from ...helpers.spark.nursery import be_mortal, die_after
from ...helpers.spark.topics import add_each, held

pytestmark = pytest.mark.spark


def staged(store: SqliteTopics, name: str, start: int, batch: int | None = None) -> Any:
    """Stage ten rows as a batch; return its transaction and receipt."""
    txn = store.begin(name, "q", start // 10 if batch is None else batch, SCHEMA).txn
    part = store.open_part(txn, 0, 0, SCHEMA)
    part.write(rows(start, 10))
    return txn, part.finish(1, 1)


def write(store: SqliteTopics, name: str, start: int) -> None:
    """Commit ten rows."""
    txn, receipt = staged(store, name, start)
    store.commit(txn, [receipt])


def topics(directory: Path, **options: Any) -> SqliteTopics:
    return SqliteTopics(directory, sync=False, **options)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    store = topics(tmp_path / "store")
    store.create("d", SCHEMA)
    store.create("other", SCHEMA)
    for start in (0, 10, 20):
        write(store, "d", start)
    write(store, "other", 0)
    store.close()
    return tmp_path / "store"


def topic(directory: Path) -> Path:
    return directory / "topics" / "d"


def part(directory: Path) -> Path:
    with closing(sqlite3.connect(directory / "topics.sqlite")) as db:
        (file,) = db.execute("SELECT file FROM segments WHERE start = 0 AND topic = 1").fetchone()
    return topic(directory) / file


def tree(directory: Path) -> set[str]:
    """Return what is there but for what SQLite makes and removes itself."""
    found = {str(path.relative_to(directory)) for path in directory.rglob("*")}
    return {name for name in found if not name.startswith("topics.sqlite-")}


def test_a_link_to_a_store_is_a_store(directory: Path) -> None:
    directory.with_name("link").symlink_to(directory)
    assert held(topics(directory.with_name("link")), "other") == list(range(10))


def test_a_store_of_before_topics_had_a_home_is_used_on(directory: Path) -> None:
    """By this version and the earlier one at once: that one names the columns that it writes."""
    other = topics(directory)
    run(directory / "topics.sqlite", "ALTER TABLE topics DROP COLUMN home")
    store = topics(directory)
    homes = {name: store.heads(name).home for name in ("d", "other")}
    assert len({*homes.values(), ""}) == 3
    assert {name: topics(directory).heads(name).home for name in homes} == homes
    assert held(store, "other") == list(range(10))
    write(store, "other", 10)
    assert held(other, "other") == list(range(20))
    earlier = "INSERT INTO topics (name, schema, version) SELECT 'new', schema, 0 FROM topics"
    run(directory / "topics.sqlite", f"{earlier} WHERE name = 'd'")
    (directory / "topics" / "new").mkdir()
    assert store.heads("new").home == ""
    store.expire(time.time())
    assert len(store.heads("new").home) == 16
    assert {name: store.heads(name).home for name in homes} == homes


def test_a_sweep_removes_no_topic_that_was_made_anew_meanwhile(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look for the folder and its removal; it has the id of the former one."""
    store = topics(directory)
    shutil.rmtree(directory / "topics" / "other")
    looked = upkeep.real_directory

    def look(path: Path, shown: str) -> bool:
        there = looked(path, shown)
        if not there:
            topics(directory).create("other", SCHEMA)
        return there

    monkeypatch.setattr(upkeep, "real_directory", look)
    store.expire(time.time())
    assert store.heads("other").latest == [0]


def test_a_read_goes_on_in_no_topic_that_was_made_anew(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have the id and, by then, the offsets of the former one."""
    monkeypatch.setattr(sqlite_topics, "AHEAD", 1)
    store = topics(directory)
    for start in (10, 20):
        write(store, "other", start)
    batches = store.read("other", 0, 0, 30).batches
    assert next(batches).num_rows == 10
    shutil.rmtree(directory / "topics" / "other")
    store.create("other", SCHEMA)
    for start in range(0, 50, 10):
        write(store, "other", start)
    with pytest.raises(RiverError, match="topic other was removed and made anew") as caught:
        list(batches)
    assert caught.value.code == "OFFSETS_GONE"


# Damage


def link_outside(path: Path) -> None:
    """Put a link to somewhere else in the place of a file or directory."""
    root = next(each for each in path.parents if each.name == "store").parent
    outside = root / "outside"
    shutil.move(path, outside)
    path.symlink_to(outside)


def put(path: Path, data: bytes) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.write_bytes(data)


def run(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(statement)


def rename(directory: Path, name: str) -> None:
    """Have the first file of the topic told by another name."""
    where = "WHERE start = 0 AND topic = 1"
    run(directory / "topics.sqlite", f"UPDATE segments SET file = '{name}' {where}")


PART_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "garbage": (lambda d: put(part(d), b"garbage"), "arrow is damaged"),
    "empty": (lambda d: put(part(d), b""), "arrow is damaged"),
    "cut": (lambda d: put(part(d), part(d).read_bytes()[:-9]), "arrow is damaged"),
    "missing": (lambda d: part(d).unlink(), r"topics/d/p0-0-\w+\.arrow is missing"),
    "a link": (lambda d: link_outside(part(d)), "arrow is not a file of the store"),
    "topic a file": (lambda d: put(topic(d), b""), "topics/d is a file"),
    "topic a link": (lambda d: link_outside(topic(d)), "topics/d is a symbolic link"),
}


@pytest.mark.parametrize("case", PART_DAMAGE)
def test_damage_is_named_and_the_rest_goes_on(directory: Path, case: str) -> None:
    damage, words = PART_DAMAGE[case]
    damage(directory)
    before = tree(directory)
    store = topics(directory)
    with pytest.raises(RiverError, match=words) as caught:
        held(store, "d")
    assert caught.value.code == "CORRUPT"
    assert str(directory) not in caught.value.message
    store.expire(time.time() + 10**9)
    assert tree(directory) == before, "what cannot be understood is not swept"
    write(store, "other", 10)
    assert held(store, "other") == list(range(20))


def test_a_row_that_names_what_is_outside_is_damaged(directory: Path) -> None:
    outside = directory / "precious"
    outside.write_text("of somebody else")
    rename(directory, "../../precious")
    store = topics(directory, retention=Retention(hard_rows=1))
    with pytest.raises(RiverError, match="outside of its folder"):
        held(store, "d")
    store.expire(time.time())
    assert store.heads("d").earliest == [20]
    assert outside.read_text() == "of somebody else"


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


DATABASE_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "garbage": (lambda p: put(p, b"garbage" * 1000), "topics.sqlite is damaged: file is not a"),
    "cut": (lambda p: cut(p, 3000), "topics.sqlite is damaged"),
    "a link": (link_outside, "topics.sqlite is a symbolic link"),
    "newer": (
        lambda p: run(p, "PRAGMA user_version = 99"),
        "has the layout 99, and this version knows 1 only: use the version of wsmux that wrote it",
    ),
}


@pytest.mark.parametrize("case", DATABASE_DAMAGE)
def test_a_damaged_database_is_named(directory: Path, case: str) -> None:
    damage, words = DATABASE_DAMAGE[case]
    damage(directory / "topics.sqlite")
    with pytest.raises(RiverError, match=words) as caught:
        held(topics(directory), "d")
    assert caught.value.code == "CORRUPT"


def test_a_database_that_cannot_be_opened_says_what_to_do(directory: Path) -> None:
    put(directory / "topics.sqlite", b"")
    (directory / "topics.sqlite").unlink()
    (directory / "topics.sqlite").mkdir()
    with pytest.raises(RiverError, match="see that its folder can be written to") as caught:
        topics(directory)
    assert caught.value.code == "STORE_FAILED"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("SQLITE_CORRUPT", "CORRUPT"),
        ("SQLITE_CORRUPT_INDEX", "CORRUPT"),
        ("SQLITE_NOTADB", "CORRUPT"),
        ("SQLITE_FORMAT", "CORRUPT"),
        ("SQLITE_BUSY_SNAPSHOT", "BUSY"),
        ("SQLITE_LOCKED", "BUSY"),
        ("SQLITE_PROTOCOL", "BUSY"),
        ("SQLITE_FULL", "STORE_FAILED"),
        ("SQLITE_IOERR_READ", "STORE_FAILED"),
        ("SQLITE_NOLFS", "STORE_FAILED"),
        ("SQLITE_AUTH", "STORE_FAILED"),
        ("SQLITE_ERROR", "STORE_FAILED"),
        ("SQLITE_CONSTRAINT_UNIQUE", "STORE_FAILED"),
        ("SQLITE_MISUSE", "STORE_FAILED"),
    ],
)
def test_nothing_is_called_damaged_that_sqlite_does_not(
    directory: Path, name: str, code: str
) -> None:
    """The advice for a damaged database is a copy of it, which loses what was committed since."""
    error = sqlite3.OperationalError("odd")
    error.sqlite_errorcode, error.sqlite_errorname = getattr(sqlite3, name), name
    with pytest.raises(RiverError) as caught, database_of(topics(directory)).read():
        raise error
    assert caught.value.code == code
    assert ("put a copy of it in its place" in caught.value.message) == (code == "CORRUPT")


def test_a_database_without_a_table_is_to_be_left_in_its_place(directory: Path) -> None:
    run(directory / "topics.sqlite", "DROP TABLE segments")
    with pytest.raises(RiverError, match=r"no such table.*leave it in its place$") as caught:
        held(topics(directory), "d")
    assert caught.value.code == "STORE_FAILED"


def test_a_misused_connection_is_no_damage(directory: Path) -> None:
    words = "ProgrammingError.*leave it in its place$"
    database = database_of(topics(directory))
    with pytest.raises(RiverError, match=words) as caught, database.read() as connection:
        connection.execute("SELECT ?")
    assert caught.value.code == "STORE_FAILED"


def test_a_disk_that_can_only_be_read_is_named(small_disk: Path) -> None:
    store = topics(small_disk / "store")
    store.create("d", SCHEMA)
    write(store, "d", 0)
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(RiverError, match=r"topics\.sqlite cannot be used: .* written to") as caught:
        topics(small_disk / "store")
    assert caught.value.code == "STORE_FAILED"
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    assert held(topics(small_disk / "store"), "d") == list(range(10))
    store.close()


def test_what_was_written_by_a_former_version_is_named(directory: Path) -> None:
    old = directory / "topics" / "old"
    (old / "_log").mkdir(parents=True)
    store = topics(directory)
    for ask in (store.describe, lambda name: store.create(name, SCHEMA)):
        with pytest.raises(RiverError, match="topics/old was written before topics were") as caught:
            ask("old")
        assert "read it with the version that wrote it, and write it again" in caught.value.message
        assert caught.value.code == "CORRUPT"
    store.expire(time.time() + 10**9)
    assert (old / "_log").is_dir()


# Staging and time


def test_a_sweep_removes_what_no_row_names(directory: Path) -> None:
    store = topics(directory)
    kept = tree(directory)
    _, receipt = staged(store, "d", 0, batch=9)
    orphan = topic(directory) / f"p9-9-{'0' * 16}.arrow"
    orphan.write_text("of a process that was killed")
    (topic(directory) / "notes.txt").write_text("of somebody else")
    store.expire(time.time())
    assert {f"topics/d/{receipt.file}", f"topics/d/{orphan.name}"} < tree(directory)
    store.expire(time.time() + 10**6)
    assert tree(directory) == kept | {"topics/d/notes.txt"}


def test_losers_go_with_the_commit(directory: Path) -> None:
    store = topics(directory)
    kept = tree(directory)
    txn = store.begin("d", "q", 9, SCHEMA).txn
    receipts = []
    for attempt in range(3):
        staging = store.open_part(txn, 0, attempt, SCHEMA)
        staging.write(rows(0, 1))
        receipts.append(staging.finish(1, 1))
    store.commit(txn, receipts[1:2])
    assert tree(directory) == kept | {f"topics/d/{receipts[1].file}"}


def test_a_topic_whose_folder_was_removed_is_gone_and_may_be_made_again(directory: Path) -> None:
    store = topics(directory)
    assert held(store, "d") == list(range(30))
    shutil.rmtree(topic(directory))
    with pytest.raises(RiverError, match="there is no topic d"):
        store.describe("d")
    other = topics(directory)
    assert other.create("d", SCHEMA)
    write(other, "d", 70)
    assert held(store, "d") == list(range(70, 80))
    shutil.rmtree(topic(directory))
    store.expire(time.time())
    with database_of(store).read() as db:
        assert db.execute("SELECT name FROM topics").fetchall() == [("other",)]
        assert db.execute("SELECT count(*) FROM segments").fetchone() == (1,)


# Several at once


def test_a_commit_cut_short_is_done_by_the_next(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies when the commit is there, before it could answer or tidy up."""
    store = topics(directory)
    txn, receipt = staged(store, "d", 30)

    def die(*names: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr("wsmux.spark.topics.sqlite_topics.remove_files", die)
        with pytest.raises(KeyboardInterrupt):
            store.commit(txn, [receipt])
    again = topics(directory)
    assert held(again, "d") == list(range(40))
    assert again.commit(txn, [receipt]).version == 4
    assert held(again, "d") == held(store, "d") == list(range(40))


def test_a_writer_may_be_killed_at_any_change(directory: Path) -> None:
    """Before and behind each of them: who writes the same again finds it whole, or not at all."""
    killed, total = True, 30
    changes = 0
    while killed:
        changes += 1
        child = os.fork()
        if not child:
            try:
                be_mortal()
                store = topics(directory)
                die_after(changes)
                write(store, "d", total)
                store.expire(time.time() + 10**6)
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        killed = os.WIFSIGNALED(status)
        assert killed or status == 0
        store = topics(directory)
        if not store.begin("d", "q", total // 10, SCHEMA).done:
            assert held(store, "d") == list(range(total))
            write(store, "d", total)
        total += 10
        assert held(store, "d") == list(range(total)), f"killed at change {changes}"
        store.close()
    assert changes > 15


def test_stores_are_made_at_once(tmp_path: Path) -> None:
    ready = threading.Barrier(8)
    made: list[bool] = []

    def make() -> None:
        ready.wait(WAIT)
        made.append(topics(tmp_path).create("d", SCHEMA))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert sorted(made) == [False] * 7 + [True]


def test_an_error_within_a_commit_leaves_nothing_of_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = topics(directory)
    txn, receipt = staged(store, "d", 30)
    with monkeypatch.context() as failing:
        failing.setattr("wsmux.spark.topics.sqlite_topics.Committed", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            store.commit(txn, [receipt])
    assert held(store, "d") == list(range(30))
    assert store.commit(txn, [receipt]).version == 4


def test_a_commit_that_waits_in_vain_says_so_and_can_be_made_again(directory: Path) -> None:
    store = topics(directory, lock_timeout=0.05)
    txn, receipt = staged(store, "d", 30)
    with closing(sqlite3.connect(directory / "topics.sqlite", isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(RiverError, match=r"topics\.sqlite was held .* for 0\.05 s") as caught:
            store.commit(txn, [receipt])
        assert caught.value.code == "BUSY"
        assert "asking again is safe; lock_timeout sets the time" in caught.value.message
        store.expire(time.time() + 10**6)  # nor do sweeps, with a warning
        assert held(store, "d") == list(range(30)), "readers wait for nobody"
    assert store.commit(txn, [receipt]).version == 4
    assert held(store, "d") == list(range(40))


def test_a_thread_that_waits_in_vain_says_so(directory: Path) -> None:
    store = topics(directory, lock_timeout=0.05)
    found: list[RiverError] = []

    def create() -> None:
        with pytest.raises(RiverError, match="held by another thread") as caught:
            store.create("new", SCHEMA)
        found.append(caught.value)

    with database_of(store).write():
        thread = threading.Thread(target=create)
        thread.start()
        thread.join(WAIT)
    assert [each.code for each in found] == ["BUSY"]


def test_processes_and_threads_share_a_directory(directory: Path) -> None:
    """Each row arrives once, and offsets have no gaps."""
    work = "import sys; from tests.helpers.spark.topics import add_each; add_each(*sys.argv[1:])"
    others = [
        subprocess.Popen([sys.executable, "-c", work, directory, "d", f"p{number}", "20"])
        for number in range(2)
    ]
    threads = [
        threading.Thread(target=add_each, args=(directory, "d", f"t{number}", 20))
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert [process.wait(WAIT) for process in others] == [0, 0]
    store = topics(directory)
    assert store.heads("d").latest == [130]
    assert sorted(held(store, "d")[30:]) == sorted([*range(20)] * 5)


def test_a_forked_process_has_connections_of_its_own(directory: Path) -> None:
    store = topics(directory)
    assert held(store, "d") == list(range(30))
    reading, writing = os.pipe()
    with database_of(store).write() as db:  # its lock is held while the process is forked
        db.execute("SELECT 1")
        child = os.fork()
        if not child:
            status = 1
            try:
                os.close(reading)
                assert held(store, "d") == list(range(30))
                os.write(writing, b"x")
                status = 0
            finally:
                os._exit(status)
        os.close(writing)
        assert os.read(reading, 1) == b"x"
    os.close(reading)
    assert os.waitpid(child, 0)[1] == 0
    write(store, "d", 30)
    assert held(store, "d") == list(range(40))


def test_a_directory_that_was_emptied_while_it_is_served_is_a_new_one(directory: Path) -> None:
    """What is written from then on is not lost in files that have no name any more."""
    store = topics(directory)
    assert held(store, "d") == list(range(30))
    for path in directory.glob("topics*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (directory / "topics").mkdir()
    with pytest.raises(RiverError, match="there is no topic d"):
        store.heads("d")
    assert store.create("d", SCHEMA)
    write(store, "d", 50)
    assert held(topics(directory), "d") == held(store, "d") == list(range(50, 60))


def test_what_is_closed_opens_again(directory: Path) -> None:
    store = topics(directory)
    for start in (30, 40):
        store.close()
        write(store, "d", start)
    assert held(store, "d") == list(range(50))


def test_what_is_safe_from_a_crash_reads_the_same(tmp_path: Path) -> None:
    store = SqliteTopics(tmp_path, sync=True)
    store.create("d", SCHEMA)
    write(store, "d", 0)
    assert held(SqliteTopics(tmp_path), "d") == list(range(10))


def test_files_are_safe_before_the_row_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteTopics(tmp_path)
    store.create("d", SCHEMA)
    txn = store.begin("d", "q", 0, SCHEMA).txn
    staging = store.open_part(txn, 0, 0, SCHEMA)
    staging.write(rows(0, 1))
    done: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        done.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        with database_of(store).read() as db:
            assert db.execute("SELECT count(*) FROM parts").fetchone() == (0,)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    receipt = staging.finish(1, 1)
    assert done == [str(tmp_path / "topics" / "d" / receipt.file), str(tmp_path / "topics" / "d")]
    with database_of(store).read() as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
