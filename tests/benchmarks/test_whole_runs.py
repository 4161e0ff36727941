"""``python -m benchmarks``, too short to mean anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from benchmarks import processes
from benchmarks.command import SCHEMA
from benchmarks.environment import cores, described, missing_module
from benchmarks.measures import MEASURES
from benchmarks.peers import find_peers
from benchmarks.processes import MeasurementFailed, Processes
from benchmarks.schedule import Order, run_pass

from ..helpers.benchmark_commands import PATIENCE, command, process_of, run
from ..helpers.commands import children
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

pytestmark = pytest.mark.tools

TINY = ("--repetitions", "1", "--seconds", "0.02")

LIBP2P = "WSMUX_LIBP2P_PYTHON"
RIVER = "WSMUX_RIVER_PYTHON"


def environment(python: str = "", variable: str = LIBP2P) -> dict[str, str]:
    return os.environ | {variable: python}


def test_every_usual_figure_is_taken() -> None:
    done = run(*TINY, "--pin", "no", "--json", "--peers", "raw,wsmux")
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert result["schema"] == SCHEMA
    assert result["environment"]["python"]
    (each,) = result["passes"]
    assert each["kind"] == "streams"
    assert each["failures"] == []
    usual = {name for name, each in MEASURES.items() if not each.heavy and each.only is None}
    assert set(each["measures"]) == usual
    for name, measure in each["measures"].items():
        wanted = {"wsmux"} if name == "tail-window" else {"raw", "wsmux"}
        assert set(measure["variants"]) == wanted
        for figures in measure["variants"].values():
            assert figures["min"] > 0
    judged = {(target["measure"], target["kind"]) for target in result["targets"]}
    assert {("upload", "ratio to raw"), ("ping-1k", "ratio to raw")} <= judged
    assert {("opens", "/s"), ("opens", "ratio to its ping 1 KiB, 1 stream")} <= judged
    assert ("tail-window", "%") in judged


def test_the_limit_and_simpler_ways_are_measured() -> None:
    measures, peers = "upload,echo,ping-1k-10,tail-p99", "tcp,naive,wsmux-python"
    done = run(*TINY, "--pin", "no", "--json", "--measures", measures, "--peers", peers)
    assert done.returncode == 0, done.stderr.decode()
    (each,) = json.loads(done.stdout)["passes"]
    assert each["failures"] == []
    assert set(each["measures"]) == set(measures.split(","))
    for measure in each["measures"].values():
        assert set(measure["variants"]) == set(peers.split(","))
        for figures in measure["variants"].values():
            assert figures["min"] > 0


def test_what_takes_long_is_taken_when_it_is_named() -> None:
    heavy = ["idle-connection-client", "among-idle"]
    done = run(
        *("--repetitions", "1", "--seconds", "0.002", "--pin", "no", "--json"),
        *("--peers", "wsmux", "--measures", ",".join(heavy)),
    )
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert result["passes"][0]["failures"] == []
    assert set(result["passes"][0]["measures"]) == set(heavy)
    assert [target["measure"] for target in result["targets"]] == heavy


@pytest.mark.long
def test_everything_that_takes_long_is_taken_of_ours() -> None:
    heavy = [name for name in MEASURES if MEASURES[name].heavy]
    done = run(
        *("--repetitions", "1", "--seconds", "0.05", "--pin", "no", "--json"),
        *("--peers", "wsmux", "--measures", ",".join(heavy)),
        timeout=600,
    )
    assert done.returncode == 0, done.stderr.decode()
    (each,) = json.loads(done.stdout)["passes"]
    assert each["failures"] == []
    assert set(each["measures"]) == set(heavy)


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
    taken = {
        name: measure["variants"]["libp2p-yamux"]
        for name, measure in result["passes"][0]["measures"].items()
        if "libp2p-yamux" in measure["variants"]
    }
    assert {"upload", "download", "echo", "ping-1k-100", "opens"} <= set(taken)
    for figures in taken.values():
        assert figures["min"] > 0
        assert figures["base"] == "wsmux-yamux"
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
    assert b"left out" not in done.stderr
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
    assert order.index("raw") < order.index("wsmux")
    assert order.index("wsmux") < order.index("wsmux-yamux") < order.index("libp2p-yamux")
    assert order.index("raw-calls") < order.index("river")


def test_new_processes_measure_after_a_failure() -> None:
    with Processes(find_peers()["wsmux"], pinned=False) as running:
        server = process_of(running)
        server.kill()
        with pytest.raises(MeasurementFailed):
            running.measure("opens", 0.01)
        assert server.returncode is not None
        assert running.measure("opens", 0.01) > 0


def test_a_variant_that_does_not_begin_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = find_peers()["naive"]
    monkeypatch.setattr(broken, "environment", {"PYTHONHOME": "/nowhere"})
    taken = run_pass(Order([find_peers()["wsmux"], broken], ["opens"], False, 2, 0.01))
    assert all(value is not None and value > 0 for value in taken.figures["opens"]["wsmux"])
    assert taken.figures["opens"]["naive"] == [None, None]
    assert [failure.partition(": it does not begin: ")[0] for failure in taken.failures] == [
        "naive, opens, repetition 1",
        "naive, opens, repetition 2",
    ]


def test_processes_that_do_not_answer_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with Processes(find_peers()["wsmux"], pinned=False) as running:
        process_of(running).send_signal(signal.SIGSTOP)
        monkeypatch.setattr(processes, "LATENESS", 0.05)
        monkeypatch.setattr(processes, "STRETCH", 1)
        with pytest.raises(MeasurementFailed, match="no answer in"):
            running.measure("opens", 0.01)


def test_ctrl_c_ends_the_workers_too() -> None:
    process = subprocess.Popen(
        command("--seconds", "5", "--peers", "raw", "--pin", "no"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for(lambda: children(process) == 2, WAIT)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert [line.split(b" ", 1)[1] for line in errors.splitlines()] == [b"figures are to be taken"]
