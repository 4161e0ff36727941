"""Measure two connections of one process, and say what is needed to compare."""

from __future__ import annotations

import sys

import pytest

from benchmarks import two_connections
from wsmux.testing.guards import FREE_THREADED


@pytest.mark.parametrize("way", two_connections.WAYS)
def test_what_all_connections_did_is_counted(way: str) -> None:
    assert two_connections.measure(way, 2, 0.0) > 0


@pytest.mark.skipif(FREE_THREADED, reason="there is nothing to say")
def test_another_python_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["two_connections"])
    with pytest.raises(SystemExit):
        two_connections.main()
    assert "expected a free-threaded Python, got" in capsys.readouterr().err
