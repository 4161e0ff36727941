"""Follow the offsets of a topic without polling: the server pushes each change.

While a topic is idle, Spark asks the planner of a query for the latest offsets some hundred times a
second. An ``OffsetFeed`` subscribes to ``topic.heads`` once and answers from memory. It belongs to
one query, which closes it. A feed that is dropped instead ends within ``SLICE`` seconds.
"""

from __future__ import annotations

import weakref
from typing import Any

from ...exceptions import WsmuxError
from ...rpc import RiverError, Subscription
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition, OneShotEvent
from ...runtime.threads import daemon_thread
from ..calls.task_calls import Target, failure, passes
from ..connection_settings import NO_CONNECTION, Link, Recipe, retry_waits
from ..errors import SparkError
from ..protocol import TOPIC_SERVICE, Code
from ..store.base import Heads

__all__ = ["OffsetFeed"]

# Seconds between checks whether the feed was dropped.
SLICE = 0.5

# What the server says when its store cannot be asked for a time: others change it, or it is away.
STORE_AWAY = frozenset({Code.BUSY, Code.STORE_FAILED})

_log = logger("wsmux.spark")


class OffsetFeed:
    """Follow the offsets of a topic; connects at once, in a background thread.

    Every method may be called from any thread.

    Args:
        recipe: the connection settings. While the server is unreachable, or says BUSY or
            STORE_FAILED, the last offsets are returned for ``call_timeout`` seconds, then errors,
            until it answers again.
        topic: the name of the topic.
    """

    def __init__(self, recipe: Recipe, topic: str) -> None:
        self._feed = _Feed(recipe, topic)
        self._thread = daemon_thread(target=self._feed.run, name=f"wsmux-heads-{topic}")
        # The finalizer may run in any thread at any time, so it only sets a flag.
        dropped = weakref.finalize(self, setattr, self._feed, "stopped", True)
        dropped.atexit = False
        self._thread.start()

    @property
    def link(self) -> Link:
        """The connection, for further calls; closed with the feed."""
        return self._feed.link

    def latest(self) -> Heads:
        """Return the latest offsets; blocks only until the first ones have arrived.

        Raises:
            SparkError: the server refused, with its code (NO_TOPIC) or UNAUTHORIZED; or for
                ``call_timeout`` it is unreachable (NO_CONNECTION), or its store is (STORE_FAILED).
            ValueError: the feed is closed.
        """
        feed = self._feed
        heads = feed.heads
        if heads is not None and feed.calm and not feed.stopped:
            return heads
        return feed.waited()

    def close(self) -> None:
        """End the subscription and its connection; may be called twice.

        Waits for the thread, at most ``connect_timeout`` seconds.
        """
        self._feed.close()
        self._thread.join(self._feed.recipe.connect_timeout)


class _Feed:
    """Hold what the thread of a feed uses, without keeping the feed itself alive.

    Attributes:
        heads: the last offsets received.
        calm: whether the subscription is believed to be active.
        stopped: whether the feed was closed or dropped.
    """

    def __init__(self, recipe: Recipe, topic: str) -> None:
        self.recipe = recipe
        self.heads: Heads | None = None
        self.calm = True
        self.stopped = False
        self._topic = topic
        self.link = Link(recipe)
        self._target = Target(recipe, TOPIC_SERVICE, "heads")
        self._changed = Condition()
        self._patience = Deadline(recipe.call_timeout)
        self._failure: SparkError | None = None
        self._away: RiverError | None = None  # what the store said, if that is why it is not calm
        self._pausing = OneShotEvent()
        self._subscription: Subscription[dict[str, Any]] | None = None

    # Feed thread

    def run(self) -> None:
        """Subscribe, repeatedly, until stopped or permanently refused."""
        try:
            waits = retry_waits(self.recipe)
            while not self.stopped:
                try:
                    self._follow()
                except (WsmuxError, OSError, EOFError) as error:
                    if self.stopped:
                        return
                    if self.calm:
                        waits.reset()
                    if not self._lost(error):
                        return
                    self._pausing.wait(waits.next())
        except Exception as error:
            _log.exception("the feed of topic %s failed", self._topic)
            self._fail(self.link.error(type(error).__name__, str(error), str(self._target)))
        finally:
            self.link.close()

    def _follow(self) -> None:
        client = self.link.client()
        with client.subscribe(TOPIC_SERVICE, "heads", {"topic": self._topic}) as subscription:
            self._subscription = subscription  # set before ``stopped`` is checked, for ``close``
            while not self.stopped:
                try:
                    told = subscription.read(SLICE)
                except TimeoutError:
                    continue
                heads = Heads.of(told)
                with self._changed:
                    self.heads, self.calm = heads, True
                    self._changed.notify_all()

    def _lost(self, error: Exception) -> bool:
        """Record the end of a subscription; return whether another one may succeed."""
        away = error if isinstance(error, RiverError) and error.code in STORE_AWAY else None
        if away is None and not isinstance(error, EOFError) and not passes(self.link, error):
            self._fail(failure(self.link, self._target, error))
            return False
        _log.info("the feed of topic %s is interrupted: %s", self._topic, error)
        with self._changed:
            if self.calm and self.heads is not None:
                # The session has already waited this long for a connection.
                waited = self.recipe.connect_timeout if away is None else 0.0
                self._patience = Deadline(max(0.0, self.recipe.call_timeout - waited))
            self.calm = False
            self._away = away
        return True

    def _fail(self, failed: SparkError) -> None:
        with self._changed:
            self._failure, self.calm = failed, False
            self._changed.notify_all()

    # Other threads

    def waited(self) -> Heads:
        """Wait for offsets, and return them or raise why there are none."""
        with self._changed:
            while True:
                if self.stopped:
                    raise ValueError(f"the feed of topic {self._topic} is closed")
                if self._failure is not None:
                    raise self._failure
                late = self._patience.expired() and not (self.heads and self.calm)
                if late:
                    raise self._gone()
                if self.heads is not None:
                    return self.heads
                self._changed.wait(self._patience.remaining())

    def _gone(self) -> SparkError:
        if self._away is not None:
            return failure(self.link, self._target, self._away)
        text = f"the server was unreachable for {self.recipe.call_timeout:g} s"
        return self.link.error(NO_CONNECTION, text, str(self._target))

    def close(self) -> None:
        """Stop, wake waiting threads and unsubscribe; the thread closes the connection."""
        self.stopped = True
        self._pausing.set()
        subscription = self._subscription
        if subscription is not None:
            subscription.close()
        with self._changed:
            self._changed.notify_all()
