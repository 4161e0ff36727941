"""A recorder is there where the configuration asks for one, and hands over what it kept."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import wsmux
from wsmux.exceptions import LocalProtocolError


def recorded(plan: wsmux.Recording | None) -> tuple[wsmux.Connection, wsmux.Connection]:
    config = wsmux.Config(recording=plan)
    one, other = socket.socketpair()
    return (
        wsmux.from_socket(one, role="client", config=config),
        wsmux.from_socket(other, role="server"),
    )


def test_without_a_plan_nothing_is_recorded_and_the_error_names_the_setting() -> None:
    ours, theirs = recorded(None)
    with (
        ours,
        theirs,
        pytest.raises(LocalProtocolError, match=r"set Config\(recording=\.\.\.\)"),
    ):
        ours.dump_recording()


def test_the_first_frame_is_recorded_too() -> None:
    kept: list[str] = []
    ours, theirs = recorded(wsmux.Recording(to=kept.append))
    with ours, theirs:
        with ours.open_stream() as stream:
            stream.write(b"first")
            assert theirs.accept_stream().read(5) == b"first"
        assert '"dir": "sent"' in ours.dump_recording()
    assert kept == []  # it ended cleanly


def test_a_connection_that_is_lost_hands_its_recording_over(tmp_path: Path) -> None:
    one, end = socket.socketpair()
    plan = wsmux.Recording(to=tmp_path)
    ours = wsmux.from_socket(one, role="client", config=wsmux.Config(recording=plan))
    theirs = wsmux.from_socket(end, role="server")
    stream = ours.open_stream()
    with ours, theirs:
        stream.write(b"x")
        assert theirs.accept_stream().read(1) == b"x"
        end.shutdown(socket.SHUT_RDWR)
        assert ours.wait_closed(20.0)
    (file,) = tmp_path.iterdir()
    assert "ConnectionClosedError" in file.read_text().partition("\n")[0]
