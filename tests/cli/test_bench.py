"""``wsmux bench``, too short to mean anything, and where there is nothing to measure."""

from __future__ import annotations

import json
import signal
import socket
import subprocess

import pytest

from wsmux.cli import bench
from wsmux.cli.bench import MEASURES, RAW
from wsmux.cli.main import main, parser
from wsmux.cli.terminal import CommandError

from ..helpers.commands import PATIENCE, children, command, run_here, served
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

TINY = ("bench", "--repetitions", "2", "--seconds", "0.02")


def test_this_machine_is_measured_beside_the_raw_pair() -> None:
    done = run_here(*TINY, "--json")
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    assert told["url"] is None
    assert "CPython" in told["machine"]
    assert list(told["measures"]) == list(MEASURES)
    for measure in told["measures"].values():
        assert list(measure["variants"]) == [RAW, "wsmux"]
        for variant in measure["variants"].values():
            assert len(variant["values"]) == 2
            assert min(variant["values"]) > 0
            assert min(variant["values"]) <= variant["median"] <= max(variant["values"])
        assert measure["variants"][RAW]["ratio"] == 1


def test_a_table_is_for_people() -> None:
    done = run_here(*TINY, "--local")
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    assert "this machine, 2 x 0.02 s" in text
    assert "x raw" in text
    assert "open, 1 KiB there and back, close, /s" in text


@pytest.mark.tools
def test_each_named_wire_is_a_column() -> None:
    done = run_here(
        *TINY, "--json", *(f"--protocol={wire}" for wire in ("yamux", "bymux", "js-ws"))
    )
    assert done.returncode == 0, done.stderr.decode()
    for measure in json.loads(done.stdout)["measures"].values():
        assert list(measure["variants"]) == [RAW, "yamux", "bymux", "js-ws"]


def test_a_server_is_measured() -> None:
    with served("--echo") as url:
        done = run_here(*TINY, url, "--json")
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    assert told["url"] == url
    assert told["measures"]["openings"]["variants"]["wsmux"]["median"] > 0


def test_a_server_without_websockets_is_measured() -> None:
    with served("--echo", "--tcp") as url:
        done = run_here(*TINY, url)
    assert done.returncode == 0, done.stderr.decode()
    assert f"{url}, 2 x 0.02 s" in done.stdout.decode()


@pytest.mark.parametrize("what", [("--sink",), ("--send", __file__)])
def test_a_server_that_sends_nothing_back_is_told_of(what: tuple[str, ...]) -> None:
    with served(*what) as url:
        done = run_here("bench", url, "--timeout", "2")
    assert done.returncode == 1
    assert done.stdout == b""
    told = done.stderr.decode()
    assert told.startswith(f"wsmux bench: {url} does not send streams back: ")
    assert told.endswith("; it wants wsmux serve --echo\n")


def test_a_server_that_does_not_speak_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}/"
        assert main(["bench", url, "--timeout", "0.1"]) == 1
    assert capsys.readouterr().err.startswith("wsmux bench: ")


def test_a_server_of_another_wire_is_told_of() -> None:
    with served("--echo", "--protocol", "yamux") as url:
        done = run_here("bench", url)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"wsmux bench: " in done.stderr


def line(*received: bytes) -> bench.Open:
    """Return what opens lines that answer so, and then end."""

    def opener() -> bench.Line:
        left = iter(received)
        return bench.Line(len, lambda size: next(left, b""), lambda: None)

    return opener


@pytest.mark.parametrize("name", MEASURES)
def test_a_stream_that_ends_early_is_no_figure(name: str) -> None:
    with pytest.raises(CommandError, match="ended a stream instead of sending back"):
        MEASURES[name].take(line(b"x"), 0.01)


@pytest.mark.parametrize("name", MEASURES)
def test_more_than_was_sent_is_no_figure(name: str) -> None:
    with pytest.raises(CommandError, match="bytes more came back than were sent"):
        MEASURES[name].take(line(bytes(bench.CHUNK + 1)), 0.01)


def test_variants_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bench.Open] = []

    def take(opener: bench.Open, duration: float) -> float:
        asked.append(opener)
        return float(len(asked))

    monkeypatch.setattr(bench, "MEASURES", {"openings": bench.Measure("openings", "/s", take)})
    raw, mux = line(), line()
    figures = bench._take({RAW: raw, "wsmux": mux}, repetitions=3, duration=1)
    assert asked == [raw, mux, mux, raw, raw, mux]
    assert figures == {"openings": {RAW: [1, 4, 5], "wsmux": [2, 3, 6]}}
    assert bench._ratio(figures["openings"], "wsmux") == 1.2  # of 2, 3/4 and 6/5


def test_quick_is_shorter() -> None:
    args = parser().parse_args(["bench", "--quick"])
    assert (args.url, args.local, args.protocol) == (None, False, None)
    assert (bench.QUICK_REPETITIONS, bench.QUICK_SECONDS) < (bench.REPETITIONS, bench.SECONDS)


def test_ctrl_c_ends_the_servers_too() -> None:
    process = subprocess.Popen(
        command("bench", "--seconds", "5"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for(lambda: children(process) == 2, WAIT)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert errors == b""


def test_the_raw_server_ends_quietly_with_its_listener() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.close()
    bench._accept(listener)


@pytest.mark.parametrize("sent", [b"", b"GET / HTT"])
def test_the_raw_server_minds_no_client_that_leaves(sent: bytes) -> None:
    ours, peer = socket.socketpair()
    peer.sendall(sent)
    peer.close()
    bench._echo_raw(ours)
    assert ours.fileno() < 0
