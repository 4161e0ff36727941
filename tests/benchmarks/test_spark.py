"""``python -m benchmarks --spark``, too short to mean anything."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.measures import SPARK_MEASURES
from benchmarks.peers import find_peers
from benchmarks.processes import MeasurementFailed, Processes
from benchmarks.results import Pass, pass_table
from benchmarks.sockets import delayed
from benchmarks.targets import TARGETS, Target, judge

from ..helpers.benchmark_commands import run
from ..helpers.ports import free_port
from ..helpers.timeouts import WAIT

pytestmark = pytest.mark.tools

TINY = ("--spark", "--repetitions", "1", "--seconds", "0.02")

# Every target of Spark is one figure of the only variant there is, over another.
SPARK_TARGETS = [target for target in TARGETS if target.measure in SPARK_MEASURES]


def test_rows_are_measured_and_ratios_judged() -> None:
    done = run(*TINY, "--measures", "sync,256x1,32x512", "--json")
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    (each,) = result["passes"]
    assert (each["kind"], each["pinned"], each["failures"]) == ("spark", False, [])
    taken = [f"{row}-{delay}ms" for row in ("sync", "256x1", "32x512") for delay in (0, 1, 5)]
    assert list(each["measures"]) == taken
    for measure in each["measures"].values():
        assert measure["variants"]["pyspark"]["min"] > 0
    judged = [target["measure"] for target in result["targets"]]
    assert judged == [f"{row}-{delay}ms" for row in ("256x1", "32x512") for delay in (0, 1, 5)]
    assert result["targets"][1]["kind"] == "ratio to its one synchronous call a row, RTT 1 ms"


def test_one_distance_may_be_measured_alone() -> None:
    done = run(*TINY, "--measures", "sync-5ms", "--json")
    assert done.returncode == 0, done.stderr.decode()
    assert list(json.loads(done.stdout)["passes"][0]["measures"]) == ["sync-5ms"]


def test_bare_websockets_are_measured_for_people() -> None:
    done = run(*TINY, "--measures", "bare-each,bare-sync")
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert "one bare WebSocket for each row, RTT 0 ms, rows/s" in text
    assert "RTT 5 ms" in text


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--measures", "nothing"), "no measure 'nothing'; there are bare-each"),
        (("--rpc",), "--rpc and --spark are measured one after the other"),
        (("--protocol", "yamux"), "calls, which have no wire to choose"),
        (("--peers", "raw"), "no variant 'raw'; there are pyspark"),
    ],
)
def test_wrong_usage_is_told(args: tuple[str, ...], text: str) -> None:
    done = run("--spark", *args)
    assert done.returncode == 2
    assert text in done.stderr.decode()


def test_what_needs_a_package_that_is_missing_is_left_out_or_refused() -> None:
    missing = ("pyspark", "pyarrow")
    done = run(*TINY, "--measures", "spark-alone", without=missing)
    assert done.returncode == 1
    assert b"spark-alone-0ms cannot be measured: pyspark is not installed" in done.stderr


def test_every_ratio_is_of_rows_that_there_are() -> None:
    assert len(SPARK_TARGETS) == 21
    for target in SPARK_TARGETS:
        assert {target.measure, target.over} <= set(SPARK_MEASURES)
        assert (target.variant, target.base) == ("pyspark", "pyspark")
        if target.goal is not None and target.must is not None:
            assert target.goal >= target.must


def test_a_row_that_fails_has_no_figure_and_says_why() -> None:
    with Processes(find_peers()["pyspark"], pinned=False) as running:
        with pytest.raises(MeasurementFailed, match="KeyError"):
            running.measure("no-such-row", 0.01)
        assert running.measure("sync-0ms", 0.01) > 0


# The report


def test_a_failed_repetition_misses_what_must_be() -> None:
    figures: dict[str, dict[str, list[float | None]]] = {
        "256x1-0ms": {"pyspark": [400.0, 300.0, None]},
        "sync-0ms": {"pyspark": [100.0, 100.0, 100.0]},
        "256x1-5ms": {"pyspark": [50.0, 60.0, 70.0]},
        "sync-5ms": {"pyspark": [0.5, 0.5, 0.5]},
    }
    taken = Pass(False, figures, kind="spark")
    near, far = judge([taken])
    assert (near.figure, near.met) == (None, False)
    assert str(near).startswith("MISSED  pyspark, 256 in flight, RTT 0 ms, not pinned: failed")
    assert (far.figure, far.met, far.goal_met) == (120, True, True)
    assert "120.00 x its one synchronous call a row, RTT 5 ms, wanted 90; goal 110 met" in str(far)
    text = str(pass_table(taken, [find_peers()["pyspark"]]))
    assert "350 (300-400), 1 failed" in text
    assert "60 (50-70)" in text


def test_a_ratio_that_is_only_told_misses_nothing() -> None:
    (told,) = judge(
        [Pass(False, {"sync-0ms": {"pyspark": [3.0]}, "bare-sync-0ms": {"pyspark": [4.0]}})]
    )
    assert told.target == Target("sync-0ms", "pyspark", base="pyspark", over="bare-sync-0ms")
    assert told.met
    assert told.goal_met
    assert str(told).startswith(
        "        pyspark, one synchronous call a row, RTT 0 ms, not pinned: "
    )


# The delay line


@pytest.fixture
def echo() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                while data := sock.recv(4096):
                    sock.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}/"
        thread.join(WAIT)


def connect(address: str) -> socket.socket:
    port = int(address.rpartition(":")[2].strip("/"))
    sock = socket.create_connection(("127.0.0.1", port))
    sock.settimeout(WAIT)
    return sock


def test_answers_come_late_and_in_order_however_many(echo: str) -> None:
    with delayed(echo, 0.05) as address, connect(address) as sock:
        start = time.perf_counter()
        data = bytes(range(256)) * 1000
        sender = threading.Thread(target=sock.sendall, args=(data,))
        sender.start()
        received = b""
        while len(received) < len(data):
            received += sock.recv(65536)
            assert time.perf_counter() - start >= 0.05
        sender.join(WAIT)
        assert received == data


def test_an_end_passes_a_delay_line(echo: str) -> None:
    with delayed(echo, 0.001) as address, connect(address) as sock:
        sock.sendall(b"last")
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(10) == b"last"
        assert sock.recv(10) == b""


def test_a_server_that_is_gone_ends_the_line() -> None:
    port = free_port()
    with delayed(f"ws://127.0.0.1:{port}/", 0) as address, connect(address) as sock:
        assert sock.recv(10) == b""
