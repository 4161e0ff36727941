"""Make tables and verdicts of figures that nobody measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from benchmarks import schedule
from benchmarks.measures import MEASURES
from benchmarks.peer import Peer
from benchmarks.peers import find_peers
from benchmarks.processes import MeasurementFailed
from benchmarks.results import Pass, pass_as_json, pass_table
from benchmarks.schedule import Order, count_steps, run_pass
from benchmarks.targets import TARGETS, judge
from wsmux.rpc.testing import Clock


def test_an_upper_limit_is_missed_from_above() -> None:
    figures: dict[str, list[float | None]] = {"river": [60.0, 65.0, 66.0]}
    (verdict,) = judge([Pass(pinned=True, figures={"idle-server": figures})])
    assert not verdict.met
    assert "65 KiB, wanted at most 64" in str(verdict)


class Unserved(Peer):
    serve = connect = lambda *_: pytest.fail("nothing is really run")  # type: ignore[assignment]


SOUND = Unserved("sound", "never fails", base="sound")
FLAWED = Unserved("flawed", "fails half of the time", base="sound")


class Scripted:
    """Stand for the processes of a variant."""

    answers: ClassVar[dict[str, list[float | None]]]

    def __init__(self, peer: Peer, pinned: bool) -> None:
        self.peer, self.pinned = peer, pinned

    def measure(self, name: str, seconds: float, within: float | None = None) -> float:
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
    return run_pass(Order([SOUND, FLAWED], ["upload"], False, len(answers["sound"]), 1))


def test_a_failure_is_shown_and_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    done = scripted(monkeypatch, sound=[2.0, 2.0, 4.0], flawed=[1.0, None, 3.0])
    assert done.failures == ("flawed, upload, repetition 2: it stalled",)
    assert done.ratios("upload", "flawed", "sound") == [0.5, 0.75]
    text = str(pass_table(done, [SOUND, FLAWED]))
    assert "2 (1-3), 1 failed" in text
    assert "failed: flawed, upload, repetition 2: it stalled" in text
    described = pass_as_json(done, [SOUND, FLAWED])
    assert described["measures"]["upload"]["variants"]["flawed"]["values"] == [1.0, None, 3.0]
    assert described["failures"] == list(done.failures)


def test_a_variant_may_fail_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    done = scripted(monkeypatch, sound=[2.0], flawed=[None])
    assert "failed" in str(pass_table(done, [SOUND, FLAWED]))
    figures = pass_as_json(done, [SOUND, FLAWED])["measures"]["upload"]["variants"]["flawed"]
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
    assert "x libp2p-yamux, wanted 6" in str(verdict)


def test_check_fails_when_a_target_is_missed() -> None:
    run_ = Pass(
        pinned=True, figures={"upload": {"raw": [1.0, 9.0, 4.0], "wsmux": [4.0, 90.0, 8.0]}}
    )
    (verdict,) = judge([run_])
    assert verdict.figure == 4.0  # the median of the ratios, not the ratio of the medians
    assert not verdict.met
    assert "MISSED" in str(verdict)


def test_a_goal_is_told_beside_what_must_be() -> None:
    figures: dict[str, list[float | None]] = {"raw": [1.0, 1.0], "wsmux": [7.0, 9.0]}
    verdict = judge([Pass(pinned=True, figures={"upload": figures})])[0]
    assert verdict.met
    assert not verdict.goal_met
    assert "8.00 x raw, wanted 6; goal 10 missed (7-9)" in str(verdict)


def test_a_ratio_may_be_to_another_figure_of_the_same_variant() -> None:
    row: dict[str, list[float | None]] = {"wsmux": [70.0, 80.0, 90.0]}
    base: dict[str, list[float | None]] = {"wsmux": [100.0, None, 100.0]}
    verdicts = judge([Pass(pinned=True, figures={"connections-200": row, "connections-10": base})])
    assert [verdict.figure for verdict in verdicts] == [pytest.approx(0.8)]
    assert "x its ping 64 B, 10 connections, wanted 0.7" in str(verdicts[0])


def test_some_targets_are_others_where_processes_are_not_pinned() -> None:
    figures: dict[str, dict[str, list[float | None]]] = {
        "ping-1k": {"raw": [1.0], "wsmux": [1.2]},
        "upload": {"raw": [1.0], "wsmux": [7.0]},
    }

    def judged(*pinned: bool) -> list[tuple[str, bool, float | None]]:
        verdicts = judge([Pass(pinned=each, figures=figures) for each in pinned])
        return [(each.target.measure, each.met, each.target.must) for each in verdicts]

    pinned = [("upload", True, 6), ("ping-1k", True, 1.1)]
    assert judged(True) == pinned
    assert judged(True, False) == [*pinned, ("ping-1k", False, 1.4)]
    assert judged(False) == [("upload", True, 6), ("ping-1k", False, 1.4)]


def test_every_target_of_streams_can_be_measured() -> None:
    peers = find_peers()
    for target in (each for each in TARGETS if each.measure in MEASURES):
        assert target.measure not in peers[target.variant].leaves_out
        if target.base:
            assert (target.over or target.measure) not in peers[target.base].leaves_out


def test_what_takes_long_is_taken_fewer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted.answers = {"sound": [1.0] * 5, "flawed": [1.0] * 5}
    monkeypatch.setattr(schedule, "Processes", Scripted)
    order, steps = Order([SOUND, FLAWED], ["ping-1k-1000"], False, 5, 1), list[str]()
    done = run_pass(order, steps.append)
    assert [len(values) for values in done.figures["ping-1k-1000"].values()] == [3, 3]
    assert len(steps) == count_steps(order) == 6
    assert steps[0] == "sound, ping-1k-1000: 1 /s"


@pytest.fixture
def clock() -> Iterator[Clock]:
    made = Clock()
    made.start()
    yield made
    made.stop()


def test_what_is_not_taken_in_time_is_left_out(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """The time is over within the fourth figure, which is none then."""

    class Slow(Scripted):
        def measure(self, name: str, seconds: float, within: float | None = None) -> float:
            told.append(within)
            if len(told) == 4:
                clock.advance(10)
                raise MeasurementFailed("no answer in 10 s")
            return 1.0

    told: list[float | None] = []
    monkeypatch.setattr(schedule, "Processes", Slow)
    done = run_pass(Order([SOUND, FLAWED], ["upload", "download"], False, 2, 1, 10.0))
    assert told == [pytest.approx(10.0)] * 4
    assert done.figures == {
        "upload": {"sound": [1.0], "flawed": [1.0]},
        "download": {"sound": [1.0]},
    }
    assert done.failures == ("5 figures are left out: 10 s were over",)
    assert "5 figures are left out" in str(pass_table(done, [SOUND, FLAWED]))


def test_figures_of_which_there_is_none_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "Processes", Scripted)
    done = run_pass(Order([SOUND], ["upload", "download"], False, 1, 1, 0.0))
    assert done.figures == {}
    text = "2 figures are left out: 0 s were over; there is none of upload, download"
    assert done.failures == (text,)
    assert text in str(pass_table(done, []))
    assert pass_as_json(done, [])["failures"] == [text]
