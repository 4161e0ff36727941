"""Kill everything that takes part in queries, at any moment; count what arrives.

Rows go from topics of one server to a topic and to a dataset of another. Whoever generates them
keeps a ledger, and is not killed. The source drops rows as soon as a query has released them.
"""

from __future__ import annotations

import json
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import cycle, islice
from pathlib import Path

from wsmux.spark import DeltaDatasets, Retention, SqliteTopics

from ..waiting import wait_for
from .arrow_data import SCHEMA
from .ingesting import held as rows_of
from .killing import Nursery
from .sessions import ROOT, environment
from .topics import add, held

__all__ = ["LOCAL", "STANDALONE", "survive"]

# Seconds for a driver to start and write a batch on a busy machine.
PATIENCE = 600.0

# Rows that the generator is ahead at most.
AHEAD = 2000

# What tells the processes of a driver, however they are related, and of its executors.
MARK = "WSMUX_TEST_DRIVER"
EXECUTOR = "executor"

# Where jobs run: in the driver's own Java, or in executors of a master and two workers.
LOCAL, STANDALONE = "local[2,3]", "standalone"

# Processes of a driver: the one that asks for offsets, all other ones of Python, and executors.
# The driver's Java has the module of the daemon in its command, too, as the value of an option.
WORDS = {
    "planner": rb"python_streaming_source_runner",
    "worker": rb"-m\0(pyspark|tests\.helpers\.spark)\.daemon\0",
    EXECUTOR: rb"CoarseGrainedExecutorBackend",
}

# What is killed, in these shares; a driver takes longest to come again.
SHARES = {
    LOCAL: ["driver", "worker", "sink", "planner", "source", "worker", "sink", "worker", "source"],
    STANDALONE: ["driver", EXECUTOR, "worker", "sink", "source", "planner"]
    + ["worker", "sink", EXECUTOR, "worker", "source", "sink"],
}

_log = logging.getLogger(__name__)


class Route:
    """Rows of a topic of the source, on their way to the sink.

    Args:
        topic: the name of the topic. source: that has it.
        count: returns how many rows have arrived. found: returns their ids.

    Attributes:
        rows: ids below this were added: the ledger.
    """

    def __init__(
        self,
        topic: str,
        source: SqliteTopics,
        count: Callable[[], int],
        found: Callable[[], list[int]],
    ) -> None:
        self.count, self.found = count, found
        self.rows = 0
        self._topic, self._source = topic, source
        source.create(topic, SCHEMA, 2)

    def add(self, batch: int) -> None:
        """Add some rows, unless those before are still to arrive."""
        if self.rows - self.count() < AHEAD:
            self.rows = add(self._source, self._topic, batch, 7, 3, first=self.rows)

    def is_released(self) -> bool:
        """Return whether some rows were dropped at the source."""
        return self._source.heads(self._topic).earliest != [0, 0]


class Generator(threading.Thread):
    """Add rows to the source, and drop what was released."""

    def __init__(self, source: SqliteTopics, routes: Sequence[Route]) -> None:
        super().__init__(name="test-generator")
        self.source = source
        self.routes = routes
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for batch in range(10**9):
                if self.stopping.wait(0.05):
                    return
                for route in self.routes:
                    route.add(batch)
                # The queries are known as soon as rows have arrived.
                if batch % 20 == 0 and all(route.count() for route in self.routes):
                    self.source.expire(time.time())
        except BaseException as error:
            self.failure = error


class Driver:
    """Run ``stream_driver``, and kill it or some of its processes.

    Args:
        master: as Spark calls it. arguments: further ones of ``stream_driver``.
    """

    def __init__(self, master: str, arguments: list[str], log: Path) -> None:
        self._mark = f"{MARK}={uuid.uuid4().hex}."
        self._number = 0
        self._master = master
        self._arguments = arguments
        self._log = log
        self.start()

    @property
    def _own(self) -> str:
        return f"{self._mark}{self._number}."

    def start(self) -> None:
        self._number += 1
        name, _, value = self._own.partition("=")
        settings = {}
        if not self._master.startswith("local"):
            settings[f"spark.executorEnv.{name}"] = f"{value}{EXECUTOR}"
        arguments = [self._master, json.dumps(settings), *self._arguments]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.spark.stream_driver", *arguments],
                env={**os.environ, name: value},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )

    def runs(self) -> bool:
        """Return true, after another start if the driver has ended by itself."""
        if self._process.poll() is not None:
            self.start()
        return True

    def kill(self) -> None:
        """Kill the driver; its executors, which are processes of others, find out themselves."""
        self._kill_all(lambda mark: mark == self._own)

    def close(self) -> None:
        """Kill this driver, those before, and all executors."""
        self._kill_all(lambda mark: mark.startswith(self._mark))

    def kill_one(self, words: bytes, chosen: random.Random) -> bool:
        """Kill a process whose command has what a pattern wants; tell whether there was one.

        It is of this driver or of its executors.
        """
        pids = sorted(_pids(lambda mark: mark.startswith(self._own), words))
        if pids:
            _kill(chosen.choice(pids))
        return bool(pids)

    def _kill_all(self, marked: Callable[[str], bool]) -> None:
        while pids := _pids(marked):
            for pid in pids:
                _kill(pid)
            self._process.wait(PATIENCE)


def _pids(marked: Callable[[str], bool], words: bytes = b"") -> list[int]:
    """Return the processes with such a mark, those whose command has what a pattern wants."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            marks = [each.decode() for each in environment if each.startswith(MARK.encode())]
            if any(map(marked, marks)) and re.search(words, command):
                found.append(int(entry.name))
    return found


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, signal.SIGKILL)


def kill(
    what: str, driver: Driver, servers: dict[str, Nursery], chosen: random.Random
) -> Iterator[str]:
    """Kill something, and start it again if nobody else does; yield what it was at each kill."""
    if what == "driver":
        driver.kill()
        yield what
        driver.start()
    elif what in WORDS:
        wait_for(lambda: driver.runs() and driver.kill_one(WORDS[what], chosen), PATIENCE)
        yield what
    else:
        server = servers[what]
        server.kill()
        server.wait_dead()
        yield what
        if what == "sink" and chosen.random() < 0.5:
            server.start(after=chosen.randrange(1, 60))
            server.wait_dead()
            yield what
        server.start()


def survive(directory: Path, java: str, kills: int, seed: int, where: str = LOCAL) -> str:
    """Kill so many times or once more, and check that each row has arrived once.

    Args:
        where: ``LOCAL`` or ``STANDALONE``.

    Returns:
        What was killed how often, and how many rows were lost and doubled.

    Raises:
        AssertionError: rows are lost or doubled, or do not arrive.
    """
    chosen = random.Random(seed)
    homes = [directory / "from", directory / "to"]
    source = SqliteTopics(homes[0], retention=Retention(rows=1))
    sink, datasets = SqliteTopics(homes[1]), DeltaDatasets(homes[1])
    sink.create("t", SCHEMA, 2)
    datasets.commit(datasets.begin("d", "create", SCHEMA).txn, [])
    routes = [
        Route("t", source, lambda: sum(sink.heads("t").latest), lambda: held(sink, "t")),
        Route("d", source, lambda: datasets.describe("d").rows, lambda: rows_of(datasets)),
    ]
    # The source is swept by the generator alone: servers that keep everything would join files of
    # rows that were released with those of rows that were not, and so keep both.
    nurseries = [Nursery(homes[0], sweep=PATIENCE), Nursery(homes[1])]
    servers = dict(zip(("source", "sink"), nurseries, strict=True))
    arguments = [java, *(nursery.url for nursery in nurseries), str(directory / "checkpoints")]
    generator = Generator(source, routes)
    done: Counter[str] = Counter()
    try:
        with (
            _master(where, directory) as master,
            _closing(Driver(master, arguments, directory / "driver.log")) as driver,
        ):
            generator.start()
            order = [*islice(cycle(SHARES[where]), kills)]
            chosen.shuffle(order)
            for what in order:
                if done.total() >= kills:
                    break
                route = chosen.choice(routes)
                before = route.count()
                wait_for(
                    lambda route=route, before=before: driver.runs() and route.count() > before,
                    PATIENCE,
                )
                generator.stopping.wait(chosen.uniform(0.0, 0.5))  # the moment is any
                for each in kill(what, driver, servers, chosen):
                    done[each] += 1
                    _log.info("kill %d of %d: %s, row %d", done.total(), kills, each, before)
            generator.stopping.set()
            generator.join(PATIENCE)
            for route in routes:
                wait_for(
                    lambda route=route: driver.runs() and route.count() >= route.rows, PATIENCE
                )
    finally:
        generator.stopping.set()
        for nursery in nurseries:
            nursery.close()
    if generator.failure is not None:
        raise generator.failure
    assert all(route.is_released() for route in routes), "nothing was released"
    return f"{where}, seed {seed}: {done.total()} kills, {dict(done)}; {checked(routes)}"


@contextmanager
def _master(where: str, directory: Path) -> Iterator[str]:
    """Yield what drivers call where jobs run."""
    from .standalone import cluster

    with cluster(environment(), directory) if where == STANDALONE else nullcontext(where) as found:
        yield found


@contextmanager
def _closing(driver: Driver) -> Iterator[Driver]:
    try:
        yield driver
    finally:
        driver.close()


def checked(routes: Sequence[Route]) -> str:
    """Compare what has arrived with the ledgers; return how many rows that are."""
    counts = [Counter(route.found()) for route in routes]
    wrong = []
    for route, found in zip(routes, counts, strict=True):
        doubled = sorted((row, count) for row, count in found.items() if count > 1)
        lost = sorted(set(range(route.rows)) - found.keys())
        strange = sorted(found.keys() - set(range(route.rows)))
        if doubled or lost or strange:
            text = f"{len(doubled)} doubled, {doubled[:20]}; {len(lost)} lost, {lost[:20]}"
            wrong.append(f"{text}; {len(strange)} from nowhere, {strange[:20]}")
    assert not wrong, wrong
    return f"{sum(route.rows for route in routes)} rows, 0 lost, 0 doubled"
