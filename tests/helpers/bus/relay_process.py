"""Run relays as processes that can be killed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from ..commands import command
from ..ports import free_port
from ..scripted import WAIT
from ..stopped_process import KillableProcess
from ..waiting import wait_for
from .relays import fetch

__all__ = ["RelayProcess"]


class RelayProcess(KillableProcess):
    """Run ``wsmux relay``; it keeps its port over ``kill``.

    Args:
        domain: its name. twins: the file of all twins.
        log: what it says on stderr goes there.
        options: further ones of the command.

    Attributes:
        url: what twins connect to; other relays post to the same port.
    """

    def __init__(self, domain: str, twins: Path, log: Path, *options: str) -> None:
        super().__init__()
        self.port = free_port()
        self.domain = domain
        self.url = f"ws://127.0.0.1:{self.port}"
        self.routes: Mapping[str, str] = {}
        self._twins = twins
        self._log = log
        self._options = options

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        said = self._log.read_text()
        assert "Traceback" not in said, said

    def start(self) -> None:
        """Start it, and wait until it is well."""
        routes = [f"--route={domain}={url}" for domain, url in self.routes.items()]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command("relay", f"--listen=127.0.0.1:{self.port}", f"--domain={self.domain}")
                + [f"--twins={self._twins}", *routes, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            wait_for(self._is_well, WAIT)
        except BaseException:
            self.kill()
            raise

    def _is_well(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            return fetch(f"{self.url}/healthz")[0] == 200
        except OSError:
            return False
