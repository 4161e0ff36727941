"""The sockets of a folder: whose they are, and which of them nobody listens on any more."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from wsmux.exceptions import HandshakeError
from wsmux.runtime import unix_sockets
from wsmux.runtime.unix_sockets import check_same_user, remove_left


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wsmux-") as name:  # a short path, for its sockets
        yield Path(name)


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not tell")
def test_a_socket_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        check_same_user(ours)
        own = os.getuid()
        monkeypatch.setattr(unix_sockets.os, "getuid", lambda: own + 1)
        with pytest.raises(HandshakeError, match=f"of user {own}, and not of {own + 1}"):
            check_same_user(ours)


def test_only_old_sockets_on_which_nobody_listens_are_removed(folder: Path) -> None:
    paths = [folder / f"{name}.sock" for name in ("left", "young", "used")]
    listeners = [socket.socket(socket.AF_UNIX) for _ in paths]
    for listener, path in zip(listeners, paths, strict=True):
        listener.bind(str(path))
        listener.listen()
    with listeners[2]:
        for listener in listeners[:2]:
            listener.close()
        for path in (paths[0], paths[2]):
            os.utime(path, (0, 0))
        (folder / "other").touch()
        remove_left(folder)
        assert {path.name for path in folder.iterdir()} == {"young.sock", "used.sock", "other"}
