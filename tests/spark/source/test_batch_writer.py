"""Commits of which no answer comes, by the writers of batches and of queries. No session."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from wsmux.spark import SparkError, serve_data
from wsmux.spark.protocol import TOPIC_SERVICE
from wsmux.spark.source.batch_writer import BatchWriter, Written
from wsmux.spark.source.options import Action, parse_options
from wsmux.spark.source.planning import ask_once
from wsmux.spark.source.stream_writer import StagedPart, StreamWriter
from wsmux.spark.source.task_writer import stage
from wsmux.spark.source.types import spark_schema
from wsmux.spark.store.base import Committed
from wsmux.spark.store.datasets import DeltaDatasets
from wsmux.spark.store.schemas import schema_bytes
from wsmux.spark.topics.sqlite_topics import SqliteTopics
from wsmux.testing import FaultProxy

from ...helpers.spark.arrow_data import SCHEMA, ids, rows
from ...helpers.spark.format_servers import opts, quick
from ...helpers.spark.topics import held, option_list
from ...helpers.timeouts import CONNECTS, WAIT

pytestmark = pytest.mark.spark

IMPATIENT = {"callTimeout": CONNECTS, "retries": 0}


class Silent(DeltaDatasets):
    """Commit, or leave that, and answer nothing until the end of the test."""

    def __init__(self, end: threading.Event) -> None:
        super().__init__()
        self._end = end
        self.commits = True

    def commit(self, txn: str, receipts: Sequence[Any]) -> Committed:
        done = super().commit(txn, receipts) if self.commits else Committed(0, 0, 0)
        assert self._end.wait(WAIT)
        return done


class SilentTopics(SqliteTopics):
    """The same for topics."""

    def __init__(self, end: threading.Event) -> None:
        super().__init__()
        self._end = end

    def commit(self, txn: str, receipts: Sequence[Any]) -> Committed:
        done = super().commit(txn, receipts)
        assert self._end.wait(WAIT)
        return done


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """Return what is set at the end of the test."""
    made = threading.Event()
    yield made
    made.set()


def kept(store: DeltaDatasets) -> list[int]:
    found = store.describe("d").ranges
    return sorted(each for one in found for each in ids(store.read(one.token).batches))


def staged(url: str, txn: str) -> Any:
    return stage(quick(url), {"txn": txn, "partition": 0, "attempt": 0}, SCHEMA, [rows(0, 3)])


def writer_of(url: str, **options: Any) -> BatchWriter:
    parsed = parse_options(opts(url, **options), Action.WRITE)
    return BatchWriter(parsed, spark_schema(SCHEMA), False)


def test_a_commit_that_was_made_succeeds_though_its_answer_is_lost(end: threading.Event) -> None:
    store = Silent(end)
    with serve_data(datasets=store) as server:
        writer = writer_of(server.url, **IMPATIENT)
        writer.commit([Written(staged(server.url, writer._txn)), Written(None)])
        assert kept(store) == [0, 1, 2]
        end.set()


def test_one_that_was_not_made_is_an_error_and_is_not_made_later(end: threading.Event) -> None:
    store = Silent(end)
    store.commits = False
    with serve_data(datasets=store) as server:
        writer = writer_of(server.url, **IMPATIENT)
        receipt = staged(server.url, writer._txn)
        with pytest.raises(SparkError, match=r"^\[TIMEOUT\] dataset.commit: ") as caught:
            writer.commit([Written(receipt)])
        assert "not known" not in caught.value.message
        end.set()
        store.commits = True
        with pytest.raises(SparkError, match=r"^\[NO_TXN\] dataset.commit: "):
            writer.commit([Written(receipt)])


def test_where_nobody_can_tell_what_became_of_a_commit_its_error_says_so() -> None:
    options: dict[str, Any] = {"callTimeout": WAIT, "connectTimeout": CONNECTS, "retries": 0}
    with serve_data() as server, FaultProxy(server.port) as proxy:
        batch = writer_of(proxy.url, **options)
        part = Written(staged(server.url, batch._txn))
        parsed = parse_options(option_list(proxy.url, "t", **options), Action.STREAM_WRITE)
        query = StreamWriter(parsed, spark_schema(SCHEMA), False)
        proxy.refusing = True
        for commit, what, advice in (
            (lambda: batch.commit([part]), "dataset.commit", "with the same txnAppId and"),
            (lambda: query.commit([StagedPart("t:q:0", False, None)], 0), "topic.commit", "start "),
        ):
            with pytest.raises(SparkError, match="whether the rows were written is not") as caught:
                commit()
            assert (caught.value.code, caught.value.what) == ("UNEXPECTED_DISCONNECT", what)
            assert advice in caught.value.message


def test_a_batch_of_a_query_and_one_of_a_topic_are_the_same(end: threading.Event) -> None:
    topics = SilentTopics(end)
    topics.create("t", SCHEMA)
    with serve_data(topics=topics) as server:
        options = option_list(server.url, "t", **IMPATIENT)
        writer = BatchWriter(parse_options(options, Action.WRITE), spark_schema(SCHEMA), False)
        writer.commit([Written(staged(server.url, writer._txn))])
        parsed = parse_options(options, Action.STREAM_WRITE)
        query = StreamWriter(parsed, spark_schema(SCHEMA), False)
        init = {"topic": "t", "query": "q", "batch": 0, "schema": schema_bytes(SCHEMA)}
        txn = ask_once(quick(server.url), TOPIC_SERVICE, "begin", **init)["txn"]
        query.commit([StagedPart(txn, False, staged(server.url, txn))], 0)
        assert held(topics, "t") == [0, 1, 2, 0, 1, 2]
        end.set()
