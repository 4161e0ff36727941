"""Say which figures there are of Spark, and take them at each distance.

Calls are made from one thread, one by one, pipelined, many rows to a message; then the same within
Spark, by two tasks at once, in workers of their own; then bulk, eight columns of eight bytes, is
read and written there, and without Spark by one stream at a time; and the offsets of a topic that
has nothing new are asked for, as Spark does a hundred times a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

from examples.flights.spark_session import spark_session
from wsmux.cli.terminal import talk

from ..blocking import Blocking, repeated
from ..peer import Measure
from ..processes import Workers, processor_seconds
from . import bulk
from .bulk import DATASET, PARTS, ROW_BYTES, ROWS_THERE, SCHEMA_TEXT, TOPIC, WRITTEN

# Milliseconds of a round trip; the first is that of the loopback itself.
NEAR, DELAYS = (0,), (0, 1, 5)

# What a row of data is: 100 bytes.
ROW = "x" * 100

# Rows made between two looks at the clock; and before it starts: they connect, and grow a window.
STEP, FIRST = 64, 8

# Rows of the job of a DataFrame, for each second that it may take: so many that the job's own half
# second counts for little; and of a write.
FRAME_RATE, WRITE_RATE = 2_000_000, 3_000_000

ARROW = ("pyspark", "pyarrow")
WITHIN = (*ARROW, "pandas")

# Task slots of the session.
TASKS = 2

# Of what is written without Spark: 128 MB.
WRITE_BATCHES = 200


class SparkClient(Workers):
    """Find servers at any distance.

    Args:
        near: the addresses of those that are always there, by their names.
    """

    def __init__(self, near: dict[str, str]) -> None:
        super().__init__()
        self._near = near

    def address(self, name: str, delay: int = 0) -> str:
        """Return where a server is: ``river``, ``raw``, or of bulk ``data`` or ``flight``.

        Args:
            delay: milliseconds of a round trip to it.
        """
        near = self._near.get(name) or self._bulk(name)
        line = ("sockets", "delayed", near, delay / 1000)
        address: str = self.worker(*line).told if delay else near
        return address

    def _bulk(self, name: str) -> str:
        told: dict[str, str] = self.worker("spark.bulk", "serve_bulk").told
        if name != "flight":
            return told[name]
        address: str = self.worker("spark.flight", "serve_flight", told["folder"]).told
        return address

    @cached_property
    def rows(self) -> list[Any]:
        """Record batches to write without Spark."""
        return bulk.make_batches(WRITE_BATCHES)

    @cached_property
    def session(self) -> Any:
        """The session; everything is loaded and compiled that jobs need."""
        talk("Spark begins")
        session = self.enter_context(spark_session("benchmarks", TASKS))
        warm_up(session)
        return session


Rows = Iterator[str]
Call = Callable[[Rows], Any]  # what Spark would be given


def _measures(
    name: str,
    title: str,
    take: Callable[..., float],
    delays: tuple[int, ...] = DELAYS,
    unit: str = "rows/s",
    **how: Any,
) -> dict[str, Measure]:
    """Return a figure at each distance, all of them of one name."""
    if name.startswith("spark-"):
        title = f"Spark: {title}"
    needs = WITHIN if title.startswith("Spark") else ARROW if take is _offset else ()

    def at(delay: int) -> Measure:
        def run(client: SparkClient, seconds: float, known: dict[str, float]) -> float:
            return take(client, delay, seconds, **how)

        return Measure(f"{title}, RTT {delay} ms", unit, run, group=name, needs=needs)

    return {f"{name}-{delay}ms": at(delay) for delay in delays}


def rows_until(end: float) -> Rows:
    """Yield rows until a time."""
    while time.perf_counter() < end:
        yield from [ROW] * STEP


def count_rows(call: Call, seconds: float) -> float:
    """Return how many rows a second come out of a call that is given rows for so long."""
    for _ in call(iter([ROW] * FIRST)):
        pass
    start = time.perf_counter()
    count = sum(1 for _ in call(rows_until(start + seconds)))
    return count / (time.perf_counter() - start)


def rate_of(action: Callable[[], object], seconds: float) -> float:
    """Return how often an action is done in a second."""
    took = repeated(action, seconds)
    return len(took) / sum(took)


# Calls


def sync(address: str) -> Call:
    """Return what makes one call for each row, and waits for it."""
    from wsmux.spark import connection

    client = connection(address).client()
    return lambda rows: (client.rpc("bench", "one", row) for row in rows)


def pipelined(address: str, in_flight: int, batch_rows: int) -> Call:
    """Return what keeps so many messages of so many rows under way."""
    from wsmux.spark import connection, rpc

    procedure = rpc(connection(address), "bench.one" if batch_rows == 1 else "bench.many")
    call: Call = procedure.rows(max_in_flight=in_flight, batch_rows=batch_rows)
    return call


def _outside(client: SparkClient, delay: int, seconds: float, make: Callable[[str], Call]) -> float:
    return count_rows(make(client.address("river", delay)), seconds)


def _bare(client: SparkClient, delay: int, seconds: float, each: bool) -> float:
    """Exchange messages on one WebSocket of websocket-client's, or each on a new one."""
    from ..peers.raw import open_line

    lines = Blocking(partial(open_line, client.address("raw", delay)))
    size = len(ROW)
    count, elapsed = lines.opens(size, seconds) if each else lines.pings(size, 1, seconds)
    return count / elapsed


def _offset(client: SparkClient, delay: int, seconds: float) -> float:
    """Ask for the latest offsets of an idle topic, as the planner does."""
    from wsmux.spark.source.datasource import DefaultSource

    source = DefaultSource({"url": client.address("data", delay), "topic": TOPIC})
    reader = source.streamReader(source.schema())
    first, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    rate = rate_of(lambda: reader.latestOffset(first, limit), seconds)
    reader.stop()
    return rate


# Within Spark


def _within(client: SparkClient, delay: int, seconds: float, make: Callable[[str], Call]) -> float:
    """Run a function over rows in every task slot, and add up the rates."""
    address = client.address("river", delay)

    def task(_: Iterator[int]) -> Iterator[float]:
        yield count_rows(make(address), seconds)

    rdd = client.session.sparkContext.parallelize(range(TASKS), TASKS)
    return float(sum(rdd.mapPartitions(task).collect()))


def _frame(
    client: SparkClient, delay: int, seconds: float, make: Callable[[str], Callable[[Any], Any]]
) -> float:
    """Send a DataFrame of strings through ``mapInArrow``, into nothing."""
    count = round(FRAME_RATE * seconds)
    mapped = _mapped(client.session, count, make(client.address("river", delay)))
    return count * rate_of(partial(_into_nothing, mapped), 0)


def _into_nothing(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _mapped(spark: Any, count: int, mapper: Callable[[Any], Any]) -> Any:
    rows = spark.range(0, count, 1, 2 * TASKS).selectExpr(f"repeat('x', {len(ROW)}) as row")
    return rows.mapInArrow(mapper, "row string")


def same(batches: Iterator[Any]) -> Iterator[Any]:
    """Return what came; a plain function, which is what ``mapInArrow`` wants."""
    return batches


def _arrow(address: str) -> Callable[[Any], Any]:
    """Send each batch to a server, which gives it back."""
    from wsmux.spark import connection, rpc

    mapper: Callable[[Any], Any] = rpc(connection(address), "bench.one").arrow(max_in_flight=4)
    return mapper


def warm_up(spark: Any) -> None:
    """Have everything loaded and compiled that jobs need, before the first is timed."""
    spark.sparkContext.parallelize(range(TASKS), TASKS).count()
    _into_nothing(_mapped(spark, FRAME_RATE // 2, same))


# Bulk


def _format(client: SparkClient, flight: bool, dataset: str) -> tuple[str, Mapping[str, str]]:
    """Return the name of a format and its options: Arrow Flight's, or ours."""
    if not flight:
        return "wsmux", {"url": client.address("data"), "dataset": dataset}
    from .flight import FlightSource

    client.session.dataSource.register(FlightSource)
    return FlightSource.name(), {"url": client.address("flight")}


# What moves bulk, and the bytes that it moves.
Move = tuple[Callable[[], object], int]


def _read(client: SparkClient, seconds: float, flight: bool) -> Move:
    """Read all that is there into nothing."""
    name, options = _format(client, flight, DATASET)
    reader = client.session.read.format(name).options(**options, numPartitions=PARTS)
    frame = reader.schema(SCHEMA_TEXT).load()
    return partial(_into_nothing, frame), ROWS_THERE * ROW_BYTES


def _write(client: SparkClient, seconds: float, flight: bool) -> Move:
    """Write rows that Spark makes, so many that it takes about the time."""
    name, options = _format(client, flight, WRITTEN)
    count = round(WRITE_RATE * seconds)
    columns = [f"id + {number} as c{number}" for number in range(ROW_BYTES // 8)]
    frame = client.session.range(0, count, 1, PARTS).selectExpr(*columns)
    return frame.write.format(name).options(**options).mode("overwrite").save, count * ROW_BYTES


def _alone(client: SparkClient, flight: bool) -> tuple[Any, str]:
    """Return the module of a client without Spark, and the address of its server."""
    if not flight:
        return bulk, client.address("data")
    from . import flight as module

    return module, client.address("flight")


def _read_alone(client: SparkClient, seconds: float, flight: bool) -> Move:
    module, address = _alone(client, flight)
    return partial(module.read_all, address), ROWS_THERE * ROW_BYTES


def _write_alone(client: SparkClient, seconds: float, flight: bool) -> Move:
    module, address = _alone(client, flight)
    size = sum(batch.nbytes for batch in client.rows)
    return partial(module.write_all, address, client.rows), size


def _moved(
    client: SparkClient,
    seconds: float,
    known: dict[str, float],
    name: str,
    cpu: bool,
    make: Callable[..., Move],
    flight: bool,
) -> float:
    """Return MB/s of what moves bulk, or milliseconds of processors for each MB; each of them once.

    A job may be repeated for as long as it is to take.
    """
    figure = f"{name}-cpu" if cpu else name
    if figure not in known:
        move, size = make(client, seconds, flight)
        used = processor_seconds()
        took = repeated(move, seconds)
        moved = size * len(took) / 1e6
        known[name] = moved / sum(took)
        known[f"{name}-cpu"] = 1000 * (processor_seconds() - used) / moved
    return known.pop(figure)


def _pipelines() -> dict[str, Measure]:
    found: dict[str, Measure] = {}
    for in_flight, batch_rows in ((1, 1), (8, 1), (64, 1), (256, 1), (8, 64), (32, 512)):
        name, title = f"{in_flight}x{batch_rows}", f"{in_flight} in flight"
        title += f", {batch_rows} rows a message" if batch_rows > 1 else ""
        make = partial(pipelined, in_flight=in_flight, batch_rows=batch_rows)
        found |= _measures(name, title, _outside, make=make)
        if name in ("256x1", "32x512"):
            found |= _measures(f"spark-{name}", title, _within, make=make)
    return found


def _bulk(name: str, title: str, make: Callable[..., Move]) -> dict[str, Measure]:
    found: dict[str, Measure] = {}
    needs = WITHIN if title.startswith("Spark") else ARROW
    for flight, ending, of in (False, "", 'format("wsmux")'), (True, "-flight", "Arrow Flight"):
        for cpu, unit in (False, "MB/s"), (True, "ms/MB"):
            row = f"{name}{ending}{'-cpu' if cpu else ''}"
            text = f"{title}, {of}{', processor time of all' if cpu else ''}, RTT 0 ms"
            run = partial(_moved, name=f"{name}{ending}", cpu=cpu, make=make, flight=flight)
            found[f"{row}-0ms"] = Measure(
                text, unit, run, less_is_better=cpu, group=row, needs=needs
            )
    return found


SPARK_MEASURES = {
    **_measures("bare-each", "one bare WebSocket for each row", _bare, each=True),
    **_measures("bare-sync", "one bare WebSocket, request and reply a row", _bare, each=False),
    **_measures("sync", "one synchronous call a row", _outside, make=sync),
    **_pipelines(),
    **_measures("latest-offset", "latest offsets of an idle topic", _offset, (5,), "calls/s"),
    **_measures("spark-alone", "no network", _within, NEAR, make=lambda address: iter),
    **_measures("spark-sync", "one synchronous call a row", _within, make=sync),
    **_measures("spark-identity", "mapInArrow, identity", _frame, NEAR, make=lambda address: same),
    **_measures(
        "spark-arrow", "mapInArrow, a batch a message, 4 in flight", _frame, (0, 5), make=_arrow
    ),
    **_bulk("read", "read", _read_alone),
    **_bulk("write", "write", _write_alone),
    **_bulk("spark-read", "Spark: read", _read),
    **_bulk("spark-write", "Spark: write", _write),
}
