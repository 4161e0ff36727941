"""The doctor measures a line, and judges what it has measured."""

from __future__ import annotations

import threading

import pytest

import wsmux
from wsmux.doctor import Plan, Report, Status, line
from wsmux.doctor.examine import STEPS

from ..helpers.broken_setups import (
    SHORT,
    echoing,
    examined,
    idle_cutting,
    idle_swallowing,
    local,
    only,
)
from ..helpers.proxies import playing
from ..helpers.timeouts import WAIT


def test_a_long_silence_that_is_cut_is_what_pings_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    short = wsmux.Config(ping_interval=0.1)
    monkeypatch.setattr(line, "Config", lambda: short)
    with echoing() as server, playing(idle_cutting(server.port, 0.4)) as port:
        step = only(examined(local(port), idle=5.0), "idle cut")
    assert step.status is Status.WARNING
    assert "keep the pings on" in step.fix


@pytest.mark.parametrize(
    ("rate", "median", "told"),
    [(5e6, 0.002, Status.OK), (5e6, 0.5, "bufferbloat"), (5e5, 0.002, "slow link")],
)
def test_load_is_judged_by_rate_and_delay(rate: float, median: float, told: str) -> None:
    report = Report("", STEPS)
    line._judge(report, rate, median, 0.001)
    assert told in (report.steps[0].status, *(t for t in (told,) if t in report.steps[0].fact))


def test_a_far_server_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "FAR", 0.0)
    with echoing() as server:
        step = only(examined(server.url), "rtt")
    assert step.status is Status.WARNING


def test_a_connection_that_is_forgotten_in_silence_is_told() -> None:
    released, report = threading.Event(), Report("", STEPS)
    with echoing() as server, playing(idle_swallowing(server.port, 0.1, released)) as port:
        line.idle_cut(report, Plan(url=local(port), idle=0.3, timeout=SHORT))
        released.set()
    [step] = report.steps
    assert step.status is Status.FAILED
    assert "nothing comes through" in step.fact


def test_no_pong_under_load_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(connection: wsmux.Connection, timeout: float | None = None) -> float:
        raise TimeoutError("no pong in time")

    report = Report("", STEPS)
    with echoing() as server:
        plan = Plan(url=server.url, timeout=WAIT, echo=True)
        with plan.connect() as connection:
            monkeypatch.setattr(wsmux.Connection, "ping", silent)
            line.load(report, plan, connection, 0.001)
    assert report.steps[0].status is Status.FAILED
    assert "under load no pong came" in report.steps[0].fact


def test_a_server_that_sends_something_else_back_is_told() -> None:
    def short(stream: wsmux.Stream) -> None:
        stream.read(65536)
        stream.write(b"short")

    report = Report("", STEPS)
    with wsmux.serve(stream_handler=short) as server:
        line.message_limit(report, Plan(url=server.url, timeout=WAIT, echo=True))
    [step] = report.steps
    assert step.status is Status.FAILED
    assert "5 of 1008 bytes came back" in step.fact
