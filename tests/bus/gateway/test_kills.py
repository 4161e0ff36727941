"""A gateway that is killed at any moment: what programs asked is answered once all the same."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wsmux.bus.client import Client
from wsmux.bus.twins.records import twin_record

from ...helpers.bus import relays
from ...helpers.bus.clients import ALICE, BOB, WAIT
from ...helpers.bus.gateway_programs import Caller, database, take_all
from ...helpers.bus.people import Table, table_of
from ...helpers.bus.redis_server import RedisServer
from ...helpers.commands import command


class Gateway:
    """Run the gateway of twin 1 in a process of its own."""

    def __init__(self, folder: Path, twins: Table, relay: str, redis: str) -> None:
        records = folder / "twins.json"
        records.write_text(json.dumps([twin_record(twin) for twin in twins.twins.values()]))
        secret = folder / "secret"
        secret.write_text(f"0x{ALICE.id:064x}\n")
        self._command = command(
            *("peer", "--mnemonic-file", str(secret), "--key-type", "ed25519", "--no-update"),
            *("--twins", str(records), "--relay", relay, "--redis", redis),
        )
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "1\n"

    def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.send_signal(number)
        status = self._process.wait(WAIT)
        self._process.stdout.close()
        self._process = None
        return status

    @contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            if self._process is not None:
                self.end(signal.SIGKILL)


@pytest.mark.parametrize(
    "count", [200, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.hang_bound(300)])]
)
def test_a_killed_gateway_loses_nothing(server: RedisServer, tmp_path: Path, count: int) -> None:
    twins = table_of(ALICE, BOB)
    runs: Counter[int] = Counter()
    reached = [threading.Event() for _ in range(3)]

    def serve(number: int) -> int:
        runs[number] += 1
        for part, event in enumerate(reached, 1):
            if len(runs) >= part * count // 4:
                event.set()
        return number

    redis = database(server, 1)
    with (
        relays.served(relays.relay(twins)) as relay,
        Client(BOB.identity, relay.url, twins, twin=2, gateway=True) as bob,
        Caller(redis) as caller,
    ):
        bob.serve({"work": serve}, workers=1)
        gateway = Gateway(tmp_path, twins, relay.url, redis)
        with gateway.running():
            for number in range(count):
                caller.push("work", [2], number, ref=str(number), ret="answers", exp=600)
            for event in reached:
                assert event.wait(2 * WAIT)
                gateway.end(signal.SIGKILL)
                gateway.start()
            found = take_all(caller, "answers", count)
            assert gateway.end(signal.SIGINT) == 130
        left = [key for key in caller.redis.scan_iter() if b"answers" not in key]
    assert found == {f"{number} 2": 1 for number in range(count)}
    assert runs == dict.fromkeys(range(count), 1)
    assert left == []
