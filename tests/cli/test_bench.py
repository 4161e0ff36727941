"""``wsmux bench``, too short to mean anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import ClassVar

import pytest

from wsmux.cli.bench import processes, schedule
from wsmux.cli.bench.blocking import Blocking
from wsmux.cli.bench.calls import SMALL, LineCalls, time_pipelined
from wsmux.cli.bench.interpreters import described, missing_module
from wsmux.cli.bench.peer import HEAD, UPLOAD, Line, Peer
from wsmux.cli.bench.peers import find_peers
from wsmux.cli.bench.processes import MeasurementFailed, Processes, cores
from wsmux.cli.bench.results import Pass, judge, pass_as_json, pass_table
from wsmux.cli.bench.schedule import run_pass

from .commands import PATIENCE, command, run

TINY = ("bench", "--repetitions", "1", "--seconds", "0.02")

LIBP2P = "WSMUX_LIBP2P_PYTHON"
RIVER = "WSMUX_RIVER_PYTHON"


def environment(python: str = "", variable: str = LIBP2P) -> dict[str, str]:
    return os.environ | {variable: python}


def test_every_figure_of_every_variant_is_taken() -> None:
    done = run(*TINY, "--pin", "no", "--json")
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert result["environment"]["python"]
    for each in result["passes"]:
        assert set(each["measures"]) >= {"upload", "download", "ping-64", "ping-1k-100", "opens"}
        for measure in each["measures"].values():
            assert {"raw", "wsmux", "wsmux-python"} <= set(measure["variants"])
            for figures in measure["variants"].values():
                assert figures["min"] > 0
    assert {target["measure"] for target in result["targets"]} == {
        "upload",
        "download",
        "ping-1k",
        "opens",
    }


def test_a_table_and_the_verdicts_are_for_people() -> None:
    done = run(*TINY, "--pin", "no", "--measures", "ping-64,opens", "--peers", "raw,wsmux")
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert "CPython" in text or "PyPy" in text
    assert "ping 64 B, 1 stream" in text
    assert "not pinned" in text
    assert "wanted 500" in text


@pytest.mark.skipif(len(cores()) < 2, reason="needs two cores")
def test_both_runs_are_printed() -> None:
    done = run(*TINY, "--measures", "upload", "--peers", "raw,wsmux", "--json")
    passes = json.loads(done.stdout)["passes"]
    assert [each["pinned"] for each in passes] == [True, False]


def test_one_variant_may_be_measured_alone() -> None:
    done = run(*TINY, "--pin", "no", "--measures", "opens", "--peers", "wsmux-python", "--json")
    row = json.loads(done.stdout)["passes"][0]["measures"]["opens"]["variants"]
    assert list(row) == ["wsmux-python"]
    assert row["wsmux-python"]["ratio"] is None


def test_a_variant_that_is_not_installed_is_left_out() -> None:
    done = run(
        *TINY, "--pin", "no", "--measures", "opens", "--json", without=("wsaccel", "rich", "tqdm")
    )
    assert done.returncode == 0
    assert (
        "raw-wsaccel" not in json.loads(done.stdout)["passes"][0]["measures"]["opens"]["variants"]
    )
    assert b"raw-wsaccel is left out" in done.stderr


def test_further_wires_are_measured_against_the_native_one() -> None:
    done = run(
        *TINY,
        *("--pin", "no", "--measures", "upload,ping-1k", "--json", "--peers", "wsmux"),
        *("--protocol", "yamux", "--protocol", "bymux,js-ws"),
        env=environment(),
    )
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    variants = result["passes"][0]["measures"]["upload"]["variants"]
    assert set(variants) == {"wsmux", "wsmux-yamux", "wsmux-bymux", "wsmux-js-ws"}
    assert variants["wsmux-bymux"]["base"] == "wsmux"
    assert variants["wsmux-bymux"]["ratio"] > 0
    kinds = {(target["variant"], target["kind"]) for target in result["targets"]}
    assert kinds == {("wsmux-yamux", "ratio to wsmux"), ("wsmux-bymux", "ratio to wsmux")}
    assert b"libp2p-yamux is left out: WSMUX_LIBP2P_PYTHON names no Python" in done.stderr


@pytest.mark.interop
@pytest.mark.skipif(not os.environ.get(LIBP2P), reason=f"{LIBP2P} names no Python with libp2p")
def test_every_figure_is_taken_of_libp2p() -> None:
    done = run(*TINY, "--pin", "no", "--json", "--peers", "wsmux-yamux,libp2p-yamux")
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert result["environment"]["others"]["libp2p-yamux"]["packages"]["libp2p"]
    assert result["passes"][0]["failures"] == []
    for measure in result["passes"][0]["measures"].values():
        assert measure["variants"]["libp2p-yamux"]["min"] > 0
        assert measure["variants"]["libp2p-yamux"]["base"] == "wsmux-yamux"
    assert "libp2p-yamux" in {target["kind"].split()[-1] for target in result["targets"]}


def test_every_figure_of_calls_is_taken() -> None:
    done = run(*TINY, "--rpc", "--pin", "no", "--json", env=environment(variable=RIVER))
    assert done.returncode == 0, done.stderr.decode()
    assert b"replit-river is left out: WSMUX_RIVER_PYTHON names no Python" in done.stderr
    result = json.loads(done.stdout)
    (each,) = result["passes"]
    assert each["failures"] == []
    rates = {"rpc-1", "rpc-32", "stream", "subscription", "echo-64k"}
    idle = {"idle-server", "idle-client"}
    assert set(each["measures"]) == rates | idle
    for name, measure in each["measures"].items():
        variants = measure["variants"]
        assert set(variants) == ({"river", "raw-calls"} if name in rates else {"river"})
        for figures in variants.values():
            assert figures["min"] > 0
    targets = {(target["measure"], target["kind"]): target for target in result["targets"]}
    assert set(targets) == {
        ("rpc-1", "ratio to raw-calls"),
        ("idle-server", "KiB"),
        ("idle-client", "KiB"),
    }
    assert targets["idle-server", "KiB"]["upper"]


def test_a_table_of_calls_is_for_people() -> None:
    done = run(*TINY, "--rpc", "--pin", "no", "--measures", "rpc-1,idle-client", "--peers", "river")
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert "rpc, one at a time, /s" in text
    assert "idle session, client, KiB" in text
    assert "wanted at most 64" in text


@pytest.mark.interop
@pytest.mark.skipif(not os.environ.get(RIVER), reason=f"{RIVER} names no Python with replit-river")
def test_every_figure_is_taken_of_replit_river() -> None:
    done = run(*TINY, "--rpc", "--pin", "no", "--json", "--peers", "river,replit-river")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    result = json.loads(done.stdout)
    assert result["environment"]["others"]["replit-river"]["packages"]["replit_river"] == "0.17.20"
    assert result["passes"][0]["failures"] == []
    for measure in result["passes"][0]["measures"].values():
        assert measure["variants"]["replit-river"]["min"] > 0
    assert "replit-river" in {target["kind"].split()[-1] for target in result["targets"]}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--rpc", "--protocol", "yamux"), b"calls, which have no wire to choose"),
        (("--rpc", "--peers", "raw"), b"no variant 'raw'; there are raw-calls"),
        (("--rpc", "--measures", "opens"), b"no measure 'opens'; there are rpc-1"),
        (("--peers", "river"), b"no variant 'river'"),
        (("--measures", "rpc-1"), b"no measure 'rpc-1'"),
    ],
)
def test_streams_and_calls_are_not_measured_together(options: tuple[str], reason: bytes) -> None:
    done = run(*TINY, *options)
    assert done.returncode == 2
    assert reason in done.stderr


def test_a_protocol_that_does_not_exist_is_a_wrong_call() -> None:
    done = run(*TINY, "--protocol", "spdy")
    assert done.returncode == 2
    assert b"no protocol 'spdy'" in done.stderr


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("", "names no Python that has {}"),
        (sys.executable, "{} is not installed for"),
        ("/nonexistent/python", "No such file"),
        ("/bin/false", "does not answer as a Python does"),
    ],
)
@pytest.mark.parametrize(
    ("options", "module", "variable"),
    [
        (("--peers", "libp2p-yamux"), "libp2p", LIBP2P),
        (("--rpc", "--peers", "replit-river"), "replit_river", RIVER),
    ],
)
def test_a_variant_that_was_named_must_be_there(
    options: tuple[str], module: str, variable: str, python: str, reason: str
) -> None:
    if python == sys.executable and missing_module(python, [module]) is None:
        pytest.skip(f"{module} is installed here")
    done = run(*TINY, *options, env=environment(python, variable))
    assert done.returncode == 1
    assert f"{options[-1]} cannot be measured" in done.stderr.decode()
    assert reason.format(module) in done.stderr.decode()


def test_another_python_tells_what_it_has() -> None:
    other = os.path.join(os.path.dirname(sys.executable), ".", os.path.basename(sys.executable))
    assert missing_module(other, ["json", "no_such_module"]) == "no_such_module"
    assert missing_module(other, ["json"]) is None
    versions = described(other, ["pytest", "no-such-package"])
    assert versions["packages"] == {"pytest": pytest.__version__}


def test_a_base_comes_before_what_is_measured_against_it() -> None:
    order = list(find_peers())
    assert order[0] == "raw"
    assert order.index("wsmux") < order.index("wsmux-yamux") < order.index("libp2p-yamux")
    assert order.index("raw-calls") < order.index("river")


def test_new_processes_measure_after_a_failure() -> None:
    with Processes(find_peers()["wsmux"], pinned=False) as running:
        server, _ = running._running
        server.kill()
        with pytest.raises(MeasurementFailed):
            running.measure("opens", 0.01)
        assert server.returncode is not None
        assert running.measure("opens", 0.01) > 0


def test_processes_that_do_not_answer_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with Processes(find_peers()["wsmux"], pinned=False) as running:
        running._running[0].send_signal(signal.SIGSTOP)
        monkeypatch.setattr(processes, "LATENESS", 0.05)
        monkeypatch.setattr(processes, "STRETCH", 1)
        with pytest.raises(MeasurementFailed, match="no answer in"):
            running.measure("opens", 0.01)


def line(*answers: bytes) -> Blocking:
    """Return a client whose lines answer so, and then end."""

    def opener() -> Line:
        left = iter(answers)
        return Line(len, lambda size: next(left, b""), lambda: None)

    return Blocking(opener)


def test_an_upload_that_was_not_counted_right_fails() -> None:
    head = HEAD.pack(UPLOAD, 99)
    with pytest.raises(RuntimeError, match="counted 99 of 100 bytes"):
        line(head[:1], head[1:]).upload(100)


def test_a_download_that_ends_early_fails() -> None:
    with pytest.raises(RuntimeError, match="40 of 100 bytes did not come"):
        line(bytes(60)).download(100)


def test_a_download_of_too_much_fails() -> None:
    with pytest.raises(RuntimeError, match="20 bytes more than 100 came"):
        line(bytes(120)).download(100)


def test_a_line_that_ends_among_pings_fails() -> None:
    with pytest.raises(RuntimeError, match="in the middle of a measurement"):
        line(bytes(10)).pings(10, lines=2, seconds=0.01)


def calls(*answers: bytes) -> LineCalls:
    """Return a client of calls whose lines answer so."""
    left = iter(answers)
    return LineCalls(lambda: Line(len, lambda size: next(left, b""), lambda: None))


def test_a_call_that_is_answered_wrongly_fails() -> None:
    with pytest.raises(RuntimeError, match="not what was sent"):
        calls(bytes(SMALL), bytes(SMALL), bytes(1)).rpcs(1, seconds=60)


def test_a_message_that_does_not_come_back_fails() -> None:
    with pytest.raises(RuntimeError, match="message 3 of 5"):
        calls(bytes(SMALL), bytes(SMALL)).streamed(5)
    with pytest.raises(RuntimeError, match="message 2 of 5"):
        calls(bytes(SMALL)).subscribed(5)


def test_a_message_that_cannot_be_sent_fails() -> None:
    def refuse() -> None:
        raise ConnectionError("it is gone")

    with pytest.raises(ConnectionError, match="it is gone"):
        time_pipelined(refuse, lambda: True, 3)


def test_a_client_without_sessions_has_none_that_are_idle() -> None:
    with pytest.raises(NotImplementedError, match="LineCalls has no sessions"):
        calls().idle(1)


def test_an_upper_limit_is_missed_from_above() -> None:
    figures: dict[str, list[float | None]] = {"river": [60.0, 65.0, 66.0]}
    (verdict,) = judge([Pass(pinned=True, figures={"idle-server": figures})])
    assert not verdict.met
    assert "65 KiB, wanted at most 64" in str(verdict)


class Flawed(Peer):
    name = "flawed"
    about = "fails half of the time"
    base = "sound"
    serve = connect = lambda *_: pytest.fail("nothing is really run")  # type: ignore[assignment]


class Sound(Flawed):
    name = base = "sound"


class Scripted:
    """Stand for the processes of a variant."""

    answers: ClassVar[dict[str, list[float | None]]]

    def __init__(self, peer: Peer, pinned: bool) -> None:
        self.peer, self.pinned = peer, pinned

    def measure(self, name: str, seconds: float) -> float:
        value = self.answers[self.peer.name].pop(0)
        if value is None:
            raise MeasurementFailed("it stalled")
        return value

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *args: object) -> None:
        pass


def scripted(monkeypatch: pytest.MonkeyPatch, **answers: list[float | None]) -> Pass:
    Scripted.answers = answers
    monkeypatch.setattr(schedule, "Processes", Scripted)
    return run_pass(
        [Sound(), Flawed()],
        ["upload"],
        pinned=False,
        repetitions=len(answers["sound"]),
        seconds=1,
        progress=lambda count: None,
    )


def test_a_failure_is_shown_and_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    done = scripted(monkeypatch, sound=[2.0, 2.0, 4.0], flawed=[1.0, None, 3.0])
    assert done.failures == ("flawed, upload, repetition 2: it stalled",)
    assert done.ratios("upload", "flawed", "sound") == [0.5, 0.75]
    text = str(pass_table(done, [Sound(), Flawed()]))
    assert "2 (1-3), 1 failed" in text
    assert "failed: flawed, upload, repetition 2: it stalled" in text
    described = pass_as_json(done, [Sound(), Flawed()])
    assert described["measures"]["upload"]["variants"]["flawed"]["values"] == [1.0, None, 3.0]
    assert described["failures"] == list(done.failures)


def test_a_variant_may_fail_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    done = scripted(monkeypatch, sound=[2.0], flawed=[None])
    assert "failed" in str(pass_table(done, [Sound(), Flawed()]))
    figures = pass_as_json(done, [Sound(), Flawed()])["measures"]["upload"]["variants"]["flawed"]
    assert figures["median"] is figures["min"] is figures["ratio"] is None


def test_a_failure_misses_the_target() -> None:
    run_ = Pass(pinned=True, figures={"opens": {"wsmux": [900.0, None, 900.0]}})
    (verdict,) = judge([run_])
    assert not verdict.met
    assert "MISSED" in str(verdict)
    assert "failed" in str(verdict)
    assert verdict.as_json()["figure"] is None


def test_a_failure_of_the_base_leaves_the_other_repetitions() -> None:
    row: dict[str, list[float | None]] = {
        "wsmux-yamux": [9.0, 9.0],
        "libp2p-yamux": [None, 2.0],
    }
    (verdict,) = judge([Pass(pinned=True, figures={"ping-1k": row})])
    assert verdict.figure == 4.5
    assert "x libp2p-yamux, wanted 3" in str(verdict)


def test_check_fails_when_a_target_is_missed() -> None:
    run_ = Pass(
        pinned=True, figures={"upload": {"raw": [1.0, 9.0, 4.0], "wsmux": [4.0, 90.0, 8.0]}}
    )
    (verdict,) = judge([run_])
    assert verdict.figure == 4.0  # the median of the ratios, not the ratio of the medians
    assert not verdict.met
    assert "MISSED" in str(verdict)


def test_ctrl_c_ends_the_workers_too() -> None:
    process = subprocess.Popen(
        command("bench", "--seconds", "5", "--peers", "raw", "--pin", "no"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert errors == b""
