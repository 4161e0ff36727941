"""Know what a topic holds without asking: the server tells each change.

Spark asks a query's planner for the latest offsets some hundred times a second while nothing comes.
So a ``OffsetFeed`` subscribes to ``topic.heads`` once, and answers from memory. It is of one query:
whoever makes it closes it. One that is dropped instead ends by itself, within ``SLICE`` seconds.
"""

from __future__ import annotations

import threading
import weakref

from ...exceptions import WsmuxError
from ...rpc import Subscription
from ...runtime.backoff import delay_after
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.threads import daemon_thread
from ..calls.task_calls import Target, failure, passes
from ..connection_settings import NO_CONNECTION, Link, Recipe
from ..errors import SparkError
from ..protocol import TOPIC_SERVICE
from ..store.base import Heads

__all__ = ["OffsetFeed"]

# Seconds between two looks whether the feed is still wanted.
SLICE = 0.5

# Seconds between attempts to subscribe again, at most.
MAX_PAUSE = 2.0

_log = logger("wsmux.spark")


class OffsetFeed:
    """Follow what a topic holds; it connects at once, in a thread of its own.

    Every method may be called from any thread.

    Args:
        recipe: how to connect. While the server is gone, answers are what was told last, for
            ``call_timeout`` seconds in all; then they are errors, until it is there again.
        topic: its name.
    """

    def __init__(self, recipe: Recipe, topic: str) -> None:
        self._feed = _Feed(recipe, topic)
        self._thread = daemon_thread(target=self._feed.run, name=f"wsmux-heads-{topic}")
        # No more than this: it may run within any call of any thread.
        dropped = weakref.finalize(self, setattr, self._feed, "stopped", True)
        dropped.atexit = False
        self._thread.start()

    @property
    def link(self) -> Link:
        """The connection, for further calls; it is closed with the feed."""
        return self._feed.link

    def latest(self) -> Heads:
        """Return what the topic holds; this waits only until that was told for the first time.

        Raises:
            SparkError: the server refuses, with its code (NO_TOPIC), or UNAUTHORIZED; or it is gone
                (NO_CONNECTION). ValueError: the feed is closed.
        """
        feed = self._feed
        heads = feed.heads
        if heads is not None and feed.calm and not feed.stopped:
            return heads
        return feed.waited()

    def close(self) -> None:
        """End the subscription and its connection; closing twice is fine.

        It waits for the thread, ``connect_timeout`` seconds at most.
        """
        self._feed.close()
        self._thread.join(self._feed.recipe.connect_timeout)


class _Feed:
    """What the thread of a feed works on, which must not keep the feed alive.

    Attributes:
        heads: what was told last.
        calm: whether the subscription goes on, as far as is known.
        stopped: nobody wants it any more.
    """

    def __init__(self, recipe: Recipe, topic: str) -> None:
        self.recipe = recipe
        self.heads: Heads | None = None
        self.calm = True
        self.stopped = False
        self._topic = topic
        self.link = Link(recipe)
        self._target = Target(recipe, TOPIC_SERVICE, "heads")
        self._changed = threading.Condition()
        self._patience = Deadline(recipe.call_timeout)
        self._failure: SparkError | None = None
        self._pausing = threading.Event()
        self._subscription: Subscription[dict[str, list[int]]] | None = None

    # The thread

    def run(self) -> None:
        """Subscribe, again and again, until it is stopped or refused for good."""
        try:
            attempt = 0
            while not self.stopped:
                try:
                    self._follow()
                except (WsmuxError, OSError, EOFError) as error:
                    if self.stopped:
                        return
                    attempt = 0 if self.calm else attempt + 1
                    if not self._lost(error):
                        return
                    self._pausing.wait(
                        delay_after(attempt + 1, self.recipe.retry_backoff, MAX_PAUSE, least=0.5)
                    )
        except Exception as error:
            _log.exception("the feed of topic %s failed", self._topic)
            self._fail(self.link.error(type(error).__name__, str(error), str(self._target)))
        finally:
            self.link.close()

    def _follow(self) -> None:
        client = self.link.client()
        with client.subscribe(TOPIC_SERVICE, "heads", {"topic": self._topic}) as subscription:
            self._subscription = subscription  # before the look whether it was stopped
            while not self.stopped:
                try:
                    told = subscription.read(SLICE)
                except TimeoutError:
                    continue
                heads = Heads(told["earliest"], told["latest"], told["bytes"])
                with self._changed:
                    self.heads, self.calm = heads, True
                    self._changed.notify_all()

    def _lost(self, error: Exception) -> bool:
        """Note the end of a subscription; tell whether another one may do better."""
        if not isinstance(error, EOFError) and not passes(self.link, error):
            self._fail(failure(self.link, self._target, error))
            return False
        _log.info("the feed of topic %s is interrupted: %s", self._topic, error)
        with self._changed:
            if self.calm and self.heads is not None:
                # The session has waited for a connection already.
                left = self.recipe.call_timeout - self.recipe.connect_timeout
                self._patience = Deadline(max(0.0, left))
            self.calm = False
        return True

    def _fail(self, failed: SparkError) -> None:
        with self._changed:
            self._failure, self.calm = failed, False
            self._changed.notify_all()

    # Others

    def waited(self) -> Heads:
        """Return what is told, unless the time for that is up."""
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
        text = f"the server was not to be reached for {self.recipe.call_timeout:g} s"
        return self.link.error(NO_CONNECTION, text, str(self._target))

    def close(self) -> None:
        """Stop and wake waiting threads; the server hears of it, the thread closes the rest."""
        self.stopped = True
        self._pausing.set()
        subscription = self._subscription
        if subscription is not None:
            subscription.close()
        with self._changed:
            self._changed.notify_all()
