"""Run commands in the Redis that holds topics, and hear of changes that others make."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

from ...rpc import RiverError
from ...runtime.backoff import Backoff
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import OneShotEvent
from ...runtime.threads import daemon_thread, start_thread
from ...storage.redis_client import (
    FAILURES,
    cause,
    explain,
    is_passing,
    is_wrong_type,
    redis_client,
    run_together,
)
from ..protocol import Code, refusal

__all__ = ["LOOK_AGAIN", "Bell", "RedisStore"]

# The oldest Redis that these topics were written for, and the layout of their keys.
OLDEST = (6, 2)
LAYOUT = b"1"

# Seconds between two attempts: at first, at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0

# Names that one read of the bell takes, and milliseconds for which it waits: less than the reply
# timeout of a connection. Seconds after which who waits looks even if the bell was not heard.
RUNG, BLOCK = 1000, 1000
LOOK_AGAIN = 2.0

_log = logger("wsmux.spark")


class RedisStore:
    """Run commands in one Redis, again if it does not answer. Any thread may use it.

    Args:
        url: of a Redis; see ``storage.redis_client``. timeout: seconds for which a command is tried
            again, but not beyond the enclosing ``deadline`` block.

    Raises:
        ValueError: the URL is none of Redis.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.client = redis_client(url)
        self._timeout = timeout

    def run(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Run commands in one round trip; each must be one that may be run twice.

        Raises:
            RiverError: STORE_FAILED or CORRUPT.
        """
        deadline, backoff = Deadline(self._timeout), Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=0.5)
        while True:
            try:
                results = run_together(self.client, commands)
                failed = next((each for each in results if isinstance(each, Exception)), None)
            except FAILURES as error:
                failed = error
            if failed is None:
                return results
            if not is_passing(failed) or deadline.expired():
                raise self._refusal(failed) from failed
            time.sleep(min(backoff.next(), deadline.remaining() or 0.0))

    def script(self, text: str, keys: tuple[str, ...], *arguments: Any) -> Any:
        """Run a script; see ``run``."""
        (result,) = self.run(("EVAL", text, len(keys), *keys, *arguments))
        return result

    def _refusal(self, error: Exception) -> RiverError:
        if is_wrong_type(error):
            text = "a key of topics holds something else: use another namespace, or remove the key"
            return refusal(Code.CORRUPT, f"{text} ({cause(error)})")
        if is_passing(error):
            text = f"{explain(error)}; it was asked for {self._timeout:g} s, and whether the change"
            text = f"{text} was made is not known: asking again is safe"
            return refusal(Code.STORE_FAILED, text)
        return refusal(Code.STORE_FAILED, f"{explain(error)}; see to its memory, rights and log")

    def check(self, layout: str, *, sync: bool) -> None:
        """Refuse a Redis that cannot keep topics; warn of one that may lose them.

        Args:
            layout: the key of the layout, set if it is not there.
            sync: whether commits have to survive a crash of its machine.

        Raises:
            RiverError: STORE_FAILED or CORRUPT.
        """
        (told,) = self.run(("INFO", "server"))
        version, mode = str(told.get("redis_version", "")), str(told.get("redis_mode", ""))
        if mode != "standalone":
            text = f"topics need a Redis of its own, not one in {mode or 'no known'} mode: a commit"
            text = f"{text} changes many keys at once; give the address of a single server"
            raise refusal(Code.STORE_FAILED, text)
        if tuple(int(each) for each in re.findall(r"\d+", version)[:2]) < OLDEST:
            text = f"topics need Redis {OLDEST[0]}.{OLDEST[1]} or later, not {version or 'unknown'}"
            raise refusal(Code.STORE_FAILED, f"{text}: upgrade it, or keep topics in SQLite")
        self._check_durability(sync=sync)
        self.run(("SETNX", layout, LAYOUT))
        (found,) = self.run(("GET", layout))
        if found != LAYOUT:
            text = f"{layout} tells of the layout {found!r:.50}, and this version knows 1 only: use"
            raise refusal(Code.CORRUPT, f"{text} the version of wsmux that wrote it")

    def _check_durability(self, *, sync: bool) -> None:
        names = ("appendonly", "appendfsync", "maxmemory-policy")
        try:
            told = self.run(*(("CONFIG", "GET", name) for name in names))
        except RiverError as error:
            if isinstance(error.__cause__, Exception) and is_passing(error.__cause__):
                raise
            _log.warning(
                "Redis does not tell its configuration (%s): see that it has appendonly yes, "
                "appendfsync always and maxmemory-policy noeviction",
                error.message,
            )
            return
        append, fsync, policy = (b"".join(each[1:]).decode() for each in told)
        if policy.startswith("allkeys"):
            text = f"Redis has maxmemory-policy {policy} and may drop topics when memory is short"
            raise refusal(Code.STORE_FAILED, f"{text}: set noeviction")
        if (append, fsync) == ("yes", "always"):
            return
        text = f"Redis has appendonly {append} and appendfsync {fsync}"
        if sync:
            text = f"{text}, so a crash would lose commits that were answered, whose batches Spark"
            text = f"{text} never writes again: set appendonly yes and appendfsync always, or give"
            raise refusal(Code.STORE_FAILED, f"{text} sync=False if that may happen")
        if append != "yes":
            _log.warning("%s: topics are lost when it ends", text)


class Bell:
    """Hear of topics that other processes change, by a thread that is there while it is needed.

    Args:
        key: the stream of the names of topics that have changed. changed: called with a name, or
            ``None`` when any topic may have changed.
    """

    def __init__(self, client: Any, key: str, changed: Callable[[str | None], None]) -> None:
        self._client = client
        self._key = key
        self._changed = changed
        self._lock = threading.Lock()
        self._stop: OneShotEvent | None = None
        self._thread: threading.Thread | None = None

    def forked(self) -> None:
        """Begin anew in a child, which has no thread."""
        self._lock = threading.Lock()
        self._stop = self._thread = None

    def listen(self) -> None:
        """Have a thread listen until ``close``; it looks first, so nothing later is missed long."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                stop = OneShotEvent()
                thread = daemon_thread(target=self._hear, args=(stop,), name="wsmux-data-topics")
                start_thread(thread)
                self._stop, self._thread = stop, thread

    def close(self) -> None:
        """End the thread; blocks for a second, or for the timeouts of the client."""
        with self._lock:
            stop, thread = self._stop, self._thread
            self._stop = self._thread = None
        if stop is not None and thread is not None:
            stop.set()
            thread.join()

    def _hear(self, stop: OneShotEvent) -> None:
        pause = Backoff(FIRST_PAUSE, LOOK_AGAIN)
        heard: Any = None
        while not stop.is_set():
            try:
                if heard is None:
                    newest = self._client.xrevrange(self._key, count=1)
                    heard = newest[0][0] if newest else b"0-0"
                    self._changed(None)  # somebody may have looked before this
                told = self._client.xread({self._key: heard}, count=RUNG, block=BLOCK)
            except FAILURES as error:
                _log.warning("changes of topics are not heard of: %s", explain(error))
                heard = None
                stop.wait(pause.next())
                continue
            pause.reset()
            for _, rings in told:
                names = {fields.get(b"t", b"").decode("utf-8", "replace") for _, fields in rings}
                for name in names:
                    self._changed(name)
                heard = rings[-1][0]
                if len(rings) == RUNG:  # there may have been more than were kept
                    self._changed(None)
