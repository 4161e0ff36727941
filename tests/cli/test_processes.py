"""Running a command several times: all must serve, and what cannot run is given up."""

from __future__ import annotations

import os
import sys

import pytest

from wsmux.cli import processes
from wsmux.cli.processes import MOST_SHORT, supervise
from wsmux.cli.terminal import CommandError


def program(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_what_ends_before_it_serves_is_an_error() -> None:
    with pytest.raises(CommandError, match="ended before it served"):
        supervise(program("pass"), 2, environment=os.environ, ready=pytest.fail)


def test_what_ends_again_and_again_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "LOOK", 0.01)
    told: list[str] = []
    with pytest.raises(CommandError, match=f"{MOST_SHORT} processes in a row"):
        supervise(program("print('here')"), 1, environment=os.environ, ready=told.append)
    assert told == ["here"]
    assert capfd.readouterr().err.count("ended with 0\n") == MOST_SHORT - 1


def test_processes_get_the_environment_and_end_with_an_error() -> None:
    code = "import os, sys; print(os.environ['WORD'], flush=True); sys.stdin.read()"

    def ready(line: str) -> None:
        assert line == "please"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervise(program(code), 2, environment={**os.environ, "WORD": "please"}, ready=ready)
