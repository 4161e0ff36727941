"""Run gateways as processes that can be killed."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wsmux.bus.twins.records import twin_record

from ..commands import command
from ..stopped_process import hold
from ..timeouts import WAIT
from .clients import ALICE
from .people import Person, Table

__all__ = ["GatewayProcess"]


class GatewayProcess:
    """Run ``wsmux peer`` for a twin, 1 by default.

    Args:
        folder: for its files. twins: all twins.
        relay, redis: the URLs.
        who: the twin. options: further ones of the command.
    """

    def __init__(
        self,
        folder: Path,
        twins: Table,
        relay: str,
        redis: str,
        who: Person = ALICE,
        *options: str,
    ) -> None:
        records = folder / "twins.json"
        records.write_text(json.dumps([twin_record(twin) for twin in twins.twins.values()]))
        secret = folder / "secret"
        secret.write_text(f"0x{who.id:064x}\n")
        kind = who.identity.key_type.value
        self._who = who.id
        self._command = command(
            *("peer", "--mnemonic-file", str(secret), "--key-type", kind, "--no-update"),
            *("--twins", str(records), "--relay", relay, "--redis", redis),
            *options,
        )
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it knows its number."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"{self._who}\n"

    def end(self, number: signal.Signals) -> int:
        """End it with a signal; return its status."""
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.send_signal(number)
        status = self._process.wait(WAIT)
        self._process.stdout.close()
        self._process = None
        return status

    def kill(self) -> None:
        """End it at once, as a crash does, and start it again."""
        self.end(signal.SIGKILL)
        self.start()

    def hold(self, seconds: float) -> None:
        """Stop it for some seconds."""
        assert self._process is not None
        hold(self._process, seconds)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it until the block is left."""
        self.start()
        try:
            yield
        finally:
            if self._process is not None:
                self.end(signal.SIGKILL)
