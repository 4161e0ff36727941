"""The feed of heads: answers from memory, goes on after cuts, and ends with who made it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from wsmux import rpc
from wsmux.spark import SparkError, connection
from wsmux.spark.source.offset_feed import OffsetFeed
from wsmux.spark.store.base import Heads

from ...helpers.spark.clients import WAIT
from ...helpers.timeouts import CONNECTS
from ...helpers.waiting import wait_for

ERRORS = [rpc.ErrorSchema(code) for code in ("NO_TOPIC", "BUSY", "STORE_FAILED", "CORRUPT")]


class Topics:
    """Serve the heads of topic ``t``, on one port, again after it was stopped."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.latest = 0
        self.asked = 0
        self.ended = 0
        self.port = 0
        self.failures: list[str] = []  # what the store says, each once
        self.start()

    def start(self) -> None:
        service = rpc.Service("topic")
        service.subscription(errors=ERRORS)(self.heads)
        self._server = rpc.serve([service], port=self.port)
        self.port = self._server.port

    def heads(self, ctx: rpc.Context, init: Any, responses: rpc.Writable[Any]) -> None:
        if init != {"topic": "t"}:
            raise rpc.RiverError("NO_TOPIC", "there is no such topic")
        self.asked += 1
        ctx.defer(self._note_end)
        seen = -1
        while not ctx.ended.is_set():
            with self.changed:
                self.changed.wait_for(lambda seen=seen: self.failures or self.latest != seen, 0.05)
                if self.failures:
                    raise rpc.RiverError(self.failures.pop(), "the store cannot be asked")
                if self.latest == seen:
                    continue
                seen = self.latest
            responses.write({"earliest": [0], "latest": [seen], "bytes": [8 * seen]})

    def _note_end(self) -> None:
        self.ended += 1

    def add(self, count: int) -> None:
        with self.changed:
            self.latest += count
            self.changed.notify_all()

    def fail(self, *codes: str) -> None:
        with self.changed:
            self.failures += codes
            self.changed.notify_all()

    def stop(self) -> None:
        self._server.shutdown(0)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"


@pytest.fixture
def topics() -> Iterator[Topics]:
    topics = Topics()
    yield topics
    topics.stop()


def quick(url: str, call_timeout: float = WAIT) -> Any:
    return connection(url, connect_timeout=CONNECTS, call_timeout=call_timeout, retry_backoff=0.01)


def heads(latest: int) -> Heads:
    return Heads([0], [latest], [8 * latest])


def feeds() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("wsmux-heads")]


def test_changes_are_told_and_nothing_is_asked(topics: Topics) -> None:
    feed = OffsetFeed(quick(topics.url), "t")
    assert feed.latest() == heads(0)
    topics.add(5)
    wait_for(lambda: feed.latest() == heads(5))
    for _ in range(1000):
        assert feed.latest() is feed.latest()
    assert topics.asked == 1
    feed.close()
    wait_for(lambda: topics.ended == 1)


def test_a_server_that_comes_again_is_followed(topics: Topics) -> None:
    feed = OffsetFeed(quick(topics.url), "t")
    assert feed.latest() == heads(0)
    topics.stop()
    assert feed.latest() == heads(0)
    topics.add(3)
    topics.start()
    wait_for(lambda: feed.latest() == heads(3))
    feed.close()


def test_a_server_that_stays_away_is_an_error_until_it_is_there(topics: Topics) -> None:
    feed = OffsetFeed(quick(topics.url, call_timeout=2 * CONNECTS), "t")
    assert feed.latest() == heads(0)
    topics.stop()

    def failed() -> str:
        try:
            return "" if feed.latest() == heads(0) else "changed"
        except SparkError as error:
            return str(error)

    wait_for(failed)
    assert failed().startswith("[NO_CONNECTION] topic.heads: the server was unreachable for")
    topics.start()
    wait_for(lambda: not failed())
    feed.close()


def test_without_a_server_the_first_answer_is_an_error() -> None:
    feed = OffsetFeed(quick("ws://127.0.0.1:1", call_timeout=0.7), "t")
    text = r"^\[NO_CONNECTION\] topic.heads: the server was unreachable"
    with pytest.raises(SparkError, match=text):
        feed.latest()
    feed.close()


def test_a_refusal_is_an_error_at_once(topics: Topics) -> None:
    feed = OffsetFeed(quick(topics.url), "another")
    for _ in range(2):
        with pytest.raises(SparkError, match=r"^\[NO_TOPIC\] topic.heads: there is no such topic"):
            feed.latest()
    wait_for(lambda: not feeds())
    feed.close()


@pytest.mark.parametrize("code", ["BUSY", "STORE_FAILED"])
def test_a_store_that_is_away_for_a_time_is_borne(topics: Topics, code: str) -> None:
    topics.fail(code)
    feed = OffsetFeed(quick(topics.url), "t")
    assert feed.latest() == heads(0)
    topics.fail(code, code)
    wait_for(lambda: topics.asked >= 4)
    assert feed.latest() == heads(0)
    topics.add(3)
    wait_for(lambda: feed.latest() == heads(3))
    feed.close()


def test_a_store_that_stays_away_is_an_error_until_it_is_there(topics: Topics) -> None:
    feed = OffsetFeed(quick(topics.url, call_timeout=CONNECTS), "t")
    assert feed.latest() == heads(0)
    topics.fail(*["STORE_FAILED"] * 10_000)
    text = r"^\[STORE_FAILED\] topic.heads: the store cannot be asked"

    def failed() -> str:
        try:
            feed.latest()
        except SparkError as error:
            return str(error)
        return ""

    wait_for(failed)
    with pytest.raises(SparkError, match=text):
        feed.latest()
    with topics.changed:
        topics.failures.clear()
    wait_for(lambda: not failed())
    feed.close()


def test_a_damaged_store_is_an_error_at_once(topics: Topics) -> None:
    feed = OffsetFeed(quick(topics.url), "t")
    assert feed.latest() == heads(0)
    topics.fail("CORRUPT")
    wait_for(lambda: not feeds())
    with pytest.raises(SparkError, match=r"^\[CORRUPT\] topic.heads: the store cannot be asked"):
        feed.latest()
    feed.close()


def test_a_closed_feed_says_so(topics: Topics) -> None:
    feed = OffsetFeed(quick(topics.url), "t")
    feed.close()
    feed.close()
    with pytest.raises(ValueError, match="the feed of topic t is closed"):
        feed.latest()


def test_a_feed_that_is_dropped_ends(topics: Topics) -> None:
    feed = OffsetFeed(quick(topics.url), "t")
    assert feed.latest() == heads(0)
    del feed
    gc.collect()
    wait_for(lambda: not feeds())
    wait_for(lambda: topics.ended == 1)


def test_who_waits_for_the_first_answer_is_woken_by_close() -> None:
    feed = OffsetFeed(quick("ws://127.0.0.1:1"), "t")
    failures: list[Exception] = []

    def ask() -> None:
        try:
            feed.latest()
        except ValueError as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    feed.close()
    thread.join(WAIT)
    assert len(failures) == 1
