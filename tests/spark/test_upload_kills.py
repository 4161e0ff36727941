"""A server and a worker of Spark are killed amid uploads of bytes: each byte is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wsmux.spark import connection, upload_bytes

from ..helpers.commands import command
from ..helpers.durable import pattern
from ..helpers.ports import free_port
from ..helpers.raw_peer import in_thread
from ..helpers.spark.sessions import SLOTS
from ..helpers.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.hang_bound(180)]

# Seconds that a job may take on a busy machine.
WAIT = 90.0

SIZE, PIECE = 2_000_000, 50_000


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Let Spark's driver open what it likes; our own side runs in workers here."""


class Receiver:
    """Run ``wsmux serve --uploads`` on one port, again after it was killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            command("serve", "--uploads", str(self._folder), "--port", str(self.port)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WAIT)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(tmp_path / "in")
    yield made
    made.kill()


def sending(url: str, folder: Path) -> Callable[[int, Any], Any]:
    """Return what uploads a partition: amid it the tasks wait, and one attempt kills its worker."""

    def pieces(partition: int) -> Iterator[bytes]:
        for start in range(0, SIZE, PIECE):
            if start == SIZE // 2 and partition < SLOTS:
                (folder / f"there-{partition}").touch()
                while not (folder / "on").exists():
                    time.sleep(0.01)
            if start == SIZE * 3 // 4 and partition == 0:
                died = folder / "died"
                if not died.exists():
                    died.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            yield pattern(start, start + PIECE)

    def send(partition: int, rows: Any) -> Any:
        yield upload_bytes(connection(url), f"part-{partition}", pieces(partition))

    return send


def test_uploads_survive_a_killed_server_and_a_killed_worker(
    spark: Any, receiver: Receiver, tmp_path: Path
) -> None:
    rows = spark.sparkContext.parallelize(range(4), 4)
    job = rows.mapPartitionsWithIndex(sending(f"ws://127.0.0.1:{receiver.port}", tmp_path))
    sent = in_thread(job.collect)
    wait_for(lambda: sent.done() or len(list(tmp_path.glob("there-*"))) == SLOTS, WAIT)
    receiver.kill()
    assert list((tmp_path / "in").glob(".part-*.part"))  # in the middle of them
    (tmp_path / "on").touch()
    receiver.start()
    assert sent.result(WAIT) == [SIZE] * 4
    expected = pattern(0, SIZE)
    for partition in range(4):
        assert (tmp_path / f"in/part-{partition}").read_bytes() == expected
    assert (tmp_path / "died").exists()
    assert not list((tmp_path / "in").glob("*.part"))
