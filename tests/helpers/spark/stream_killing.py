"""Kill everything that takes part in a query, at any moment; count what arrives.

Rows go from a topic of one server to a topic of another. Whoever generates them keeps a ledger,
and is not killed. The source drops rows as soon as the query has released them.
"""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path

from wsmux.spark import Retention, SqliteTopics

from ..waiting import wait_for
from .arrow_data import SCHEMA
from .killing import Nursery
from .sessions import ROOT
from .topics import add, held

__all__ = ["survive"]

# Seconds for a driver to start and write a batch on a busy machine.
PATIENCE = 600.0

# Rows that the generator is ahead at most.
AHEAD = 2000

# What tells the processes of a driver, however they are related.
MARK = "WSMUX_TEST_DRIVER"

# Python processes of a driver: the one that asks for offsets, and all the others.
# The driver's Java has the module of the daemon in its command, too, as the value of an option.
WORDS = {
    "planner": rb"python_streaming_source_runner",
    "worker": rb"-m\0(pyspark|tests\.spark)\.daemon\0",
}

_log = logging.getLogger(__name__)


class Generator(threading.Thread):
    """Add rows to the source, and drop what was released.

    Attributes:
        rows: ids below this were added: the ledger.
    """

    def __init__(self, source: SqliteTopics, sink: SqliteTopics) -> None:
        super().__init__(name="test-generator")
        self.source = source
        self.sink = sink
        self.rows = 0
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for batch in range(10**9):
                if self.stopping.wait(0.05):
                    return
                arrived = sum(self.sink.heads("t").latest)
                if self.rows - arrived < AHEAD:
                    self.rows = add(self.source, "t", batch, 7, 3, first=self.rows)
                if arrived and batch % 20 == 0:  # the query is known by then
                    self.source.expire(time.time())
        except BaseException as error:
            self.failure = error


class Driver:
    """Run ``stream_driver``, and kill it or some of its processes."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.mark = uuid.uuid4().hex
        self._arguments = arguments
        self._log = log
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.spark.stream_driver", *self._arguments],
                env={**os.environ, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )

    def pids(self, words: bytes = b"") -> list[int]:
        """Return the processes of this driver, those whose command has what a pattern wants."""
        mark, found = f"{MARK}={self.mark}".encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    environment = (entry / "environ").read_bytes().split(b"\0")
                    command = (entry / "cmdline").read_bytes()
                except OSError:
                    continue  # it has ended
                if mark in environment and re.search(words, command):
                    found.append(int(entry.name))
        return found

    def kill(self) -> None:
        """Kill all of it."""
        while pids := self.pids():
            for pid in pids:
                _kill(pid)
            self._process.wait(PATIENCE)

    def kill_one(self, words: bytes, chosen: random.Random) -> bool:
        """Kill a process whose command has what a pattern wants; tell whether there was one."""
        pids = sorted(self.pids(words))
        if pids:
            _kill(chosen.choice(pids))
        return bool(pids)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, signal.SIGKILL)


def kinds(kills: int, chosen: random.Random) -> list[str]:
    """Return what is killed, in some order; a driver takes longest to come again."""
    found = ["driver"] * (kills // 6)
    found += ["planner", "source", "sink"] * (kills // 6)
    found += ["worker"] * (kills - len(found))
    chosen.shuffle(found)
    return found


def kill(what: str, driver: Driver, servers: dict[str, Nursery], chosen: random.Random) -> None:
    """Kill something, and start it again if nobody else does."""
    if what == "driver":
        driver.kill()
        driver.start()
    elif what in WORDS:
        wait_for(lambda: driver.kill_one(WORDS[what], chosen), PATIENCE)
    else:
        server = servers[what]
        server.kill()
        server.wait_dead()
        if what == "sink" and chosen.random() < 0.5:
            server.start(after=chosen.randrange(1, 60))
            server.wait_dead()
        server.start()


def survive(directory: Path, java: str, kills: int, seed: int) -> None:
    """Kill so many times, and check that each row has arrived once.

    Raises:
        AssertionError: rows are lost or doubled, or do not arrive.
    """
    chosen = random.Random(seed)
    homes = [directory / "from", directory / "to"]
    source = SqliteTopics(homes[0], retention=Retention(rows=1))
    sink = SqliteTopics(homes[1])
    for topics in (source, sink):
        topics.create("t", SCHEMA, 2)
    # The source is swept by the generator alone: servers that keep everything would join files of
    # rows that were released with those of rows that were not, and so keep both.
    nurseries = [Nursery(homes[0], sweep=PATIENCE), Nursery(homes[1])]
    urls = [nursery.url for nursery in nurseries]
    generator = Generator(source, sink)
    driver = Driver([java, *urls, str(directory / "checkpoint")], directory / "driver.log")
    try:
        generator.start()
        servers = dict(zip(("source", "sink"), nurseries, strict=True))
        for number, what in enumerate(kinds(kills, chosen), 1):
            before = sum(sink.heads("t").latest)
            wait_for(lambda before=before: sum(sink.heads("t").latest) > before, PATIENCE)
            generator.stopping.wait(chosen.uniform(0.0, 0.5))  # the moment is any
            _log.info("kill %d of %d: %s, behind row %d", number, kills, what, before)
            kill(what, driver, servers, chosen)
        generator.stopping.set()
        generator.join(PATIENCE)
        wait_for(lambda: sum(sink.heads("t").latest) >= generator.rows, PATIENCE)
    finally:
        generator.stopping.set()
        driver.kill()
        for nursery in nurseries:
            nursery.close()
    if generator.failure is not None:
        raise generator.failure
    check(sink, generator.rows)
    assert source.heads("t").earliest != [0, 0], "nothing was released"


def check(sink: SqliteTopics, rows: int) -> None:
    """Compare what has arrived with the ledger."""
    found = Counter(held(sink, "t"))
    doubled = {row: count for row, count in found.items() if count > 1}
    lost = set(range(rows)) - found.keys()
    assert not doubled, f"doubled: {sorted(doubled.items())[:20]}"
    assert not lost, f"lost: {sorted(lost)[:20]}"
    assert len(found) == rows
