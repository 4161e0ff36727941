"""Kill those who upload a file and those who receive it, over and over, until all has come."""

from __future__ import annotations

import hashlib
import random
import subprocess
import time
from array import array
from pathlib import Path

from .commands import PATIENCE, command
from .ports import free_port
from .waiting import wait_for

__all__ = ["KilledUploads", "write_offsets"]

# Seconds within which a process is killed after its upload was seen to go on.
SOON = 0.05


def write_offsets(path: Path, size: int) -> None:
    """Write a file of which each eight bytes are their own offset."""
    numbers = array("Q", range(0, size, 8))
    numbers.byteswap()
    path.write_bytes(numbers.tobytes())


class KilledUploads:
    """Upload one file under one name after another, with both processes killed meanwhile.

    Args:
        folder: for the file, and below it for what is received.
        size: bytes of the file.
        seed: decides whom it meets, and when.

    Attributes:
        kills: how many processes were killed so far.
    """

    def __init__(self, folder: Path, size: int, seed: int) -> None:
        self.kills = 0
        self._source = folder / "source"
        write_offsets(self._source, size)
        self._received = folder / "received"
        self._random = random.Random(seed)
        self._port = free_port()
        self._receiver: subprocess.Popen[bytes] | None = None
        self._sender: subprocess.Popen[bytes] | None = None

    def upload(self, name: str, kills: int) -> None:
        """Upload the file, killing as many processes if there is time; check what has come."""
        left = self.kills + kills
        while self._running(name).poll() is None:
            before = self._length(name)
            wait_for(lambda before=before: self._went_on(name, before), PATIENCE)
            if self.kills < left:
                time.sleep(self._random.uniform(0, SOON))  # a moment that nothing decides
                self._kill()
        assert self._sender is not None
        _, errors = self._sender.communicate(timeout=PATIENCE)
        assert self._sender.returncode == 0, errors.decode()
        self._sender = None
        expected = hashlib.sha256(self._source.read_bytes()).digest()
        received = self._received / name
        assert hashlib.sha256(received.read_bytes()).digest() == expected
        received.unlink()
        assert not list(self._received.glob("*.part"))

    def end(self) -> None:
        """Kill what is left."""
        for process in (self._sender, self._receiver):
            if process is not None:
                process.kill()
                process.communicate(timeout=PATIENCE)

    def _went_on(self, name: str, before: int) -> bool:
        assert self._sender is not None
        return self._sender.poll() is not None or self._length(name) > before

    def _length(self, name: str) -> int:
        """Return how much has come, which never becomes less."""
        try:
            if not (self._received / name).exists():
                parts = self._received.glob(f".{name}.*.part")
                return sum(path.stat().st_size for path in parts)
        except FileNotFoundError:
            pass  # it has got its name in between
        return self._source.stat().st_size + 1

    def _running(self, name: str) -> subprocess.Popen[bytes]:
        """Start who does not run; return the sender."""
        if self._receiver is None:
            port = str(self._port)
            self._receiver = subprocess.Popen(
                command("serve", "--uploads", str(self._received), "--port", port),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        if self._sender is None:
            url = f"ws://127.0.0.1:{self._port}"
            self._sender = subprocess.Popen(
                command("upload", str(self._source), url, "--name", name),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        return self._sender

    def _kill(self) -> None:
        assert self._sender is not None
        assert self._receiver is not None
        whom = self._random.choice(("sender", "receiver", "both"))
        if whom != "receiver" and self._sender.poll() is None:
            self._sender.kill()
            self._sender.communicate(timeout=PATIENCE)
            self._sender = None
            self.kills += 1
        if whom != "sender":
            self._receiver.kill()
            self._receiver.wait(PATIENCE)
            self._receiver = None
            self.kills += 1
