"""``python -m benchmarks --spark``, too short to mean anything."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.spark.delayline import delayed
from benchmarks.spark.report import as_json, judge, table
from benchmarks.spark.row import Ratio
from benchmarks.spark.rows import find_ratios, find_rows
from benchmarks.spark.workers import Workers
from wsmux.cli.terminal import CommandError

from ..patience import WAIT
from .commands import run

pytestmark = pytest.mark.tools

TINY = ("--spark", "--repetitions", "1", "--seconds", "0.02")


def test_rows_are_measured_and_ratios_judged() -> None:
    done = run(*TINY, "--measures", "sync,256x1,32x512", "--json")
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert list(result["rows"]) == ["sync", "256x1", "32x512"]
    for row in result["rows"].values():
        assert set(row["delays"]) == {"0", "1", "5"}
        assert all(value > 0 for values in row["delays"].values() for value in values)
    judged = [(each["row"], each["delay"]) for each in result["targets"]]
    assert judged == [(row, delay) for row in ("256x1", "32x512") for delay in (0, 1, 5)]


def test_bare_websockets_are_measured_for_people() -> None:
    done = run(*TINY, "--measures", "bare-each,bare-sync")
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert "one bare WebSocket for each row, rows/s" in text
    assert "RTT 5 ms" in text


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--measures", "nothing"), "no measure 'nothing'; there are bare-each"),
        (("--rpc",), "has figures of its own"),
        (("--protocol", "yamux"), "has figures of its own"),
        (("--peers", "raw"), "has figures of its own"),
    ],
)
def test_wrong_usage_is_told(args: tuple[str, ...], text: str) -> None:
    done = run("--spark", *args)
    assert done.returncode == 2
    assert text in done.stderr.decode()


def test_every_ratio_is_of_rows_that_there_are() -> None:
    rows = find_rows()
    for ratio in find_ratios():
        assert {ratio.row, ratio.base} <= set(rows)
        assert set(ratio.limits) | set(ratio.goals) <= set(rows[ratio.row].delays)
        assert all(ratio.goals[delay] >= limit for delay, limit in ratio.limits.items())


def test_a_row_that_fails_has_no_figure_and_says_why() -> None:
    with Workers((0,), spark=False) as workers:
        with pytest.raises(CommandError, match="AttributeError"):
            workers.measure("spark-sync", False, 0, 0.01)
        assert workers.measure("sync", False, 0, 0.01) > 0


# The report

FIGURES = {"a": {0: [400.0, 300.0, None], 5: [50.0, 60.0, 70.0]}, "b": {0: [100.0, 100.0, 100.0]}}
RATIOS = [
    Ratio("a", "b", {0: 3.0, 5: 0.5}, {5: 1.0}),
    Ratio("b", "a", {}, {}),
    Ratio("a", "other", {}, {}),
]


def test_a_failed_repetition_misses_a_limit() -> None:
    near, far, back = judge(FIGURES, RATIOS)
    assert (near.figure, near.met) == (None, False)
    assert str(near) == "MISSED  a / b, RTT 0 ms: failed, wanted 3"
    assert (far.figure, far.met) == (0.6, True)
    assert str(far) == "met     a / b, RTT 5 ms: 0.60, wanted 0.5, goal 1"
    assert back.met
    assert str(back).startswith("        b / a, RTT 0 ms: ")


def test_a_table_shows_medians_and_failures() -> None:
    rows = {"a": find_rows()["sync"], "b": find_rows()["256x1"]}
    text = str(table(FIGURES, rows, ["a note"]))
    assert "350 (300-400), 1 failed" in text
    assert "60 (50-70)" in text
    assert text.endswith("a note")
    assert "failed" in str(table({"a": {0: [None]}}, rows, []))
    assert as_json(FIGURES, rows, judge(FIGURES, RATIOS), [])["rows"]["b"]["delays"] == {
        "0": [100.0, 100.0, 100.0]
    }


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
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with delayed(f"ws://127.0.0.1:{port}/", 0) as address, connect(address) as sock:
        assert sock.recv(10) == b""
