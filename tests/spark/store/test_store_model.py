"""Random interleavings against a simple model: what was committed is there, and nothing else."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from wsmux.rpc import RiverError
from wsmux.spark.protocol import Receipt
from wsmux.spark.store.base import Committed, DatasetStore, Part, Retention
from wsmux.spark.store.datasets import DeltaDatasets
from wsmux.spark.topics.redis_topics import RedisTopics
from wsmux.spark.topics.sqlite_topics import SqliteTopics

from ...helpers.redis_server import RedisServer
from ...helpers.spark.arrow_data import SCHEMA, ids, rows
from ...helpers.spark.inside import join_soon

# A failure is made small before it is told, which takes its time.
pytestmark = [pytest.mark.spark, pytest.mark.hang_bound(300)]

TTL = 1000.0
KEEP = 8


def attempt(function: Any, *arguments: Any) -> tuple[Any, str | None]:
    """Return what a call returns, and the code of its error."""
    try:
        return function(*arguments), None
    except RiverError as error:
        return None, error.code


@dataclass
class Txn:
    """A transaction as the model knows it."""

    name: str
    mode: str = "append"
    app: tuple[str, int] | None = None
    open: bool = True
    answer: Committed | None = None
    old: bool = False  # its time is over, so that its answer may be forgotten
    parts: dict[Receipt, list[int]] = field(default_factory=dict)


class Machine(RuleBasedStateMachine):
    """Hold what both machines share: a store that may be opened again, and rows to write."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.next_id = 0
        self.everybody: list[Txn] = []
        self.unfinished: list[Part] = []

    def teardown(self) -> None:
        for part in self.unfinished:
            part.discard()
        shutil.rmtree(self.directory)

    def stage(self, store: Any, txn: Txn, partition: int, number: int, count: int) -> None:
        """Write a part, which the model knows if it could be written."""
        part, code = attempt(store.open_part, txn.name, partition, number, SCHEMA)
        if not txn.open:
            assert code == "NO_TXN"
            return
        assert code is None
        batch, written = rows(self.next_id, count), list(range(self.next_id, self.next_id + count))
        self.next_id += count
        part.write(batch)
        txn.parts[part.finish(10 * count, 7)] = written

    def leave_open(self, store: Any, txn: Txn) -> None:
        """Begin a part and never finish it."""
        if txn.open:
            part = store.open_part(txn.name, 9, 9, SCHEMA)
            part.write(rows(10**6, 3))
            self.unfinished.append(part)


def winners(txn: Txn, picks: list[int]) -> list[Receipt]:
    """Return one receipt of each partition, or of some."""
    by_partition: dict[int, list[Receipt]] = {}
    for receipt in txn.parts:
        by_partition.setdefault(receipt.partition, []).append(receipt)
    chosen = []
    for place, (_, receipts) in enumerate(sorted(by_partition.items())):
        pick = picks[place % len(picks)]
        if pick:
            chosen.append(receipts[pick % len(receipts)])
    return chosen


class DatasetMachine(Machine):
    """Compare a store of datasets with versions as lists."""

    txns: Bundle[Txn] = Bundle("txns")

    def open_store(self) -> DatasetStore:
        raise NotImplementedError

    @initialize()
    def start(self) -> None:
        self.store = self.open_store()
        self.versions: list[list[int]] = []
        self.overwritten: list[int] = []
        self.oldest = 0
        self.apps: dict[str, tuple[int, Txn]] = {}
        self.tokens: list[tuple[str, int, list[int]]] = []

    @rule(
        target=txns,
        mode=st.sampled_from(["append", "append", "overwrite", "create"]),
        app=st.none() | st.tuples(st.sampled_from("ab"), st.integers(0, 3)),
    )
    def begin(self, mode: str, app: tuple[str, int] | None) -> Txn:
        last = self.apps.get(app[0]) if app else None
        begun, code = attempt(self.store.begin, "d", mode, SCHEMA, *(app or ()))
        if app and last and last[0] >= app[1]:
            assert begun == (last[1].name, True)
            return last[1]
        if mode == "create" and self.versions:
            assert code == "EXISTS"
            return Txn("d:d:" + "0" * 32, open=False)
        assert begun.done is False
        self.everybody.append(Txn(begun.txn, mode, app))
        return self.everybody[-1]

    @rule(txn=txns, partition=st.integers(0, 2), number=st.integers(0, 2), count=st.integers(0, 4))
    def write(self, txn: Txn, partition: int, number: int, count: int) -> None:
        self.stage(self.store, txn, partition, number, count)

    @rule(txn=txns)
    def begin_a_part(self, txn: Txn) -> None:
        self.leave_open(self.store, txn)

    @rule(txn=txns, picks=st.lists(st.integers(0, 3), min_size=1, max_size=3))
    def commit(self, txn: Txn, picks: list[int]) -> None:
        receipts = winners(txn, picks)
        answer, code = attempt(self.store.commit, txn.name, receipts)
        if txn.answer is not None:
            assert answer == txn.answer or (txn.old and code == "NO_TXN")
        elif not txn.open:
            assert code == "NO_TXN"
        elif txn.app and txn.app[0] in self.apps and self.apps[txn.app[0]][0] >= txn.app[1]:
            assert answer == self.apps[txn.app[0]][1].answer
            txn.parts.clear()
        elif txn.mode == "create" and self.versions:
            assert code == "EXISTS"
        else:
            self.committed(txn, receipts)
            assert answer == txn.answer

    def committed(self, txn: Txn, receipts: list[Receipt]) -> None:
        new = [each for receipt in receipts for each in txn.parts[receipt]]
        old = self.versions[-1] if self.versions and txn.mode != "overwrite" else []
        version = len(self.versions)
        self.versions.append(old + new)
        if txn.mode == "overwrite":
            self.overwritten.append(version)
        size = sum(receipt.bytes for receipt in receipts)
        txn.answer, txn.open = Committed(version, len(new), size), False
        if txn.app:
            self.apps[txn.app[0]] = (txn.app[1], txn)

    @rule(
        target=txns,
        mode=st.sampled_from(["append", "overwrite"]),
        app=st.none() | st.tuples(st.sampled_from("ab"), st.integers(0, 3)),
        counts=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    )
    def do_a_job(self, mode: str, app: tuple[str, int] | None, counts: list[int]) -> Txn:
        """Do what mostly happens."""
        txn = self.begin(mode, app)
        for partition, count in enumerate(counts):
            self.write(txn, partition, 0, count)
        self.commit(txn, [1])
        return txn

    @rule(txn=txns, other=txns)
    def commit_what_is_not_its_own(self, txn: Txn, other: Txn) -> None:
        foreign = [receipt for receipt in other.parts if receipt not in txn.parts]
        superseded = txn.app and txn.app[0] in self.apps and self.apps[txn.app[0]][0] >= txn.app[1]
        taken = txn.mode == "create" and self.versions
        if foreign and txn.open and not superseded and not taken:
            assert attempt(self.store.commit, txn.name, foreign[:1])[1] == "WRONG_RECEIPT"

    @rule(txn=txns)
    def abort(self, txn: Txn) -> None:
        assert self.store.abort(txn.name) is (txn.answer is not None) or txn.old
        if txn.open:
            txn.open = False
            txn.parts.clear()

    @rule(partitions=st.integers(1, 5))
    def describe(self, partitions: int) -> None:
        if self.versions:
            version = len(self.versions) - 1
            found: list[int] = []
            for one in self.store.describe("d", partitions).ranges:
                part = self.versions[-1][len(found) : len(found) + one.rows]
                self.tokens.append((one.token, version, part))
                found += part
            assert found == self.versions[-1]

    @rule(skip=st.integers(0, 5), data=st.data())
    @precondition(lambda self: self.tokens)
    def read(self, skip: int, data: st.DataObject) -> None:
        token, version, wanted = data.draw(st.sampled_from(self.tokens))
        table, code = attempt(self.store.read, token, skip)
        if version < self.oldest:
            assert code == "VERSION_GONE"
        else:
            assert ids(table.batches) == wanted[skip:]

    @rule()
    def sweep(self) -> None:
        self.store.expire(time.time())

    @rule()
    def expire(self) -> None:
        """Let the time of everything run out that is not current."""
        self.store.expire(time.time() + TTL + 60)
        for txn in self.everybody:
            txn.open, txn.old = False, not self.is_last_of_app(txn)
            txn.parts.clear()
        self.oldest = max([self.oldest, *self.overwritten])

    def is_last_of_app(self, txn: Txn) -> bool:
        return any(last is txn for _, last in self.apps.values())

    @rule()
    def restart(self) -> None:
        self.store = self.open_store()

    @invariant()
    def the_newest_version_is_whole(self) -> None:
        if not hasattr(self, "store"):
            return
        told, code = attempt(self.store.describe, "d")
        if not self.versions:
            assert code == "NO_DATASET"
            return
        assert told.version == len(self.versions) - 1
        assert told.rows == len(self.versions[-1])
        found = [each for one in told.ranges for each in ids(self.store.read(one.token).batches)]
        assert found == self.versions[-1]


class TopicMachine(Machine):
    """Compare a store of topics with lists of rows, a list a partition."""

    txns: Bundle[Txn] = Bundle("txns")
    partitions = 2

    def open_store(self) -> SqliteTopics | RedisTopics:
        raise NotImplementedError

    @initialize()
    def start(self) -> None:
        self.store = self.open_store()
        assert self.store.create("t", SCHEMA, self.partitions)
        self.rows: list[list[int]] = [[] for _ in range(self.partitions)]
        self.last: dict[str, tuple[int, Committed]] = {}
        self.txns_of: dict[tuple[str, int], Txn] = {}
        self.commits = 0
        self.earliest = [0] * self.partitions
        self.released: dict[str, list[int]] = {}

    @rule(target=txns, query=st.sampled_from("pq"), ahead=st.integers(-1, 2))
    def begin(self, query: str, ahead: int) -> Txn:
        number = max(0, self.last.get(query, (-1, None))[0] + ahead)
        begun = self.store.begin("t", query, number, SCHEMA)
        done = query in self.last and self.last[query][0] >= number
        assert begun.done is done
        txn = self.txns_of.setdefault((query, number), Txn(begun.txn, app=(query, number)))
        assert txn.name == begun.txn
        txn.open = not done
        return txn

    @rule(txn=txns, partition=st.integers(0, 4), number=st.integers(0, 2), count=st.integers(0, 4))
    def write(self, txn: Txn, partition: int, number: int, count: int) -> None:
        self.stage(self.store, txn, partition, number, count)

    @rule(txn=txns)
    def begin_a_part(self, txn: Txn) -> None:
        self.leave_open(self.store, txn)

    @rule(txn=txns, picks=st.lists(st.integers(0, 3), min_size=1, max_size=3))
    def commit(self, txn: Txn, picks: list[int]) -> None:
        assert txn.app is not None
        query, number = txn.app
        receipts = winners(txn, picks)
        answer, code = attempt(self.store.commit, txn.name, receipts)
        last = self.last.get(query)
        if last is not None and last[0] == number:
            assert answer == last[1]
        elif last is not None and last[0] > number:
            assert answer == Committed(self.commits, 0, 0)
        elif not txn.open:
            assert code == "NO_TXN"
        else:
            self.commits += 1
            for receipt in receipts:
                self.rows[receipt.partition % self.partitions] += txn.parts[receipt]
            total = sum(receipt.rows for receipt in receipts)
            size = sum(receipt.bytes for receipt in receipts)
            self.last[query] = number, Committed(self.commits, total, size)
            assert answer == self.last[query][1]
            for (other, earlier), each in self.txns_of.items():
                each.open &= other != query or earlier > number

    @rule(
        target=txns,
        query=st.sampled_from("pq"),
        counts=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    )
    def do_a_batch(self, query: str, counts: list[int]) -> Txn:
        """Do what mostly happens."""
        txn = self.begin(query, 1)
        for partition, count in enumerate(counts):
            self.write(txn, partition, 0, count)
        self.commit(txn, [1])
        return txn

    @rule(txn=txns)
    def abort(self, txn: Txn) -> None:
        assert txn.app is not None
        query, number = txn.app
        committed = query in self.last and self.last[query][0] >= number
        assert self.store.abort(txn.name) is committed
        txn.open = False
        if not committed:
            txn.parts.clear()

    @rule(
        query=st.sampled_from("pqr"),
        place=st.integers(0, 1),
        back=st.integers(0, 9),
        replaces=st.none() | st.sampled_from("pqr"),
    )
    def release(self, query: str, place: int, back: int, replaces: str | None) -> None:
        offsets = [max(0, len(held) - back * (at == place)) for at, held in enumerate(self.rows)]
        self.store.release("t", query, offsets, replaces)
        before = self.released.get(query, offsets)
        if replaces != query and replaces is not None:
            self.released.pop(replaces, None)
        self.released[query] = [max(pair) for pair in zip(before, offsets, strict=True)]

    @rule()
    def sweep(self) -> None:
        self.check_retention(time.time())

    @rule()
    def expire(self) -> None:
        self.check_retention(time.time() + TTL + 60)
        for txn in self.txns_of.values():
            txn.open = False
            txn.parts.clear()

    def check_retention(self, now: float) -> None:
        """Retention keeps the newest rows, and what is not released; what it drops is gone."""
        self.store.expire(now)
        heads = self.store.heads("t")
        for place, (before, after) in enumerate(zip(self.earliest, heads.earliest, strict=True)):
            floor = min((each[place] for each in self.released.values()), default=10**9)
            assert before <= after <= max(before, floor)
        held = sum(heads.latest) - sum(heads.earliest)
        assert held >= min(KEEP, sum(heads.latest) - sum(self.earliest))
        self.earliest = heads.earliest

    @rule(place=st.integers(0, 1), data=st.data())
    def read(self, place: int, data: st.DataObject) -> None:
        latest = len(self.rows[place])
        start = data.draw(st.integers(0, latest))
        end = data.draw(st.integers(start, latest))
        table, code = attempt(self.store.read, "t", place, start, end)
        if start < self.earliest[place] and start < end:
            assert code == "OFFSETS_GONE"
        else:
            assert ids(table.batches) == self.rows[place][start:end]

    @rule()
    def restart(self) -> None:
        self.store = self.open_store()

    @invariant()
    def what_is_held_is_whole(self) -> None:
        if hasattr(self, "store"):
            heads = self.store.heads("t")
            assert heads.latest == [len(held) for held in self.rows]
            assert heads.earliest == self.earliest
            for place, held in enumerate(self.rows):
                start, end = heads.earliest[place], heads.latest[place]
                assert ids(self.store.read("t", place, start, end).batches) == held[start:end]


class DeltaMachine(DatasetMachine):
    def open_store(self) -> DatasetStore:
        return DeltaDatasets(self.directory, ttl=TTL, sync=False)


class SqliteMachine(TopicMachine):
    def open_store(self) -> SqliteTopics:
        return SqliteTopics(self.directory, ttl=TTL, retention=Retention(rows=KEEP), sync=False)


class JoiningMachine(SqliteMachine):
    """Do the same where two files are enough to be joined, at any moment."""

    def open_store(self) -> SqliteTopics:
        store = SqliteTopics(self.directory, ttl=TTL, retention=Retention(rows=KEEP), sync=False)
        join_soon(store, after=2, rows=10 * KEEP)
        return store


class RedisMachine(TopicMachine):
    url = ""

    def open_store(self) -> RedisTopics:
        self.teardown_store()
        space, keep = self.directory.name, Retention(rows=KEEP)
        return RedisTopics(self.url, namespace=space, ttl=TTL, retention=keep, sync=False)

    def teardown_store(self) -> None:
        if hasattr(self, "store"):
            self.store.close()

    def teardown(self) -> None:
        self.teardown_store()
        super().teardown()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        RedisMachine.url = server.url
        yield


def bounded(machine: type[RuleBasedStateMachine], examples: int) -> Any:
    case = machine.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=40)
    return case


TestDeltaDatasets = bounded(DeltaMachine, 40)
TestSqliteTopics = bounded(SqliteMachine, 40)
TestJoinedTopics = bounded(JoiningMachine, 40)
TestRedisTopics = pytest.mark.usefixtures("redis")(bounded(RedisMachine, 20))
