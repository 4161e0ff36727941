"""``wsmux registrar``: one that serves, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wsmux.bus.twins.http import HttpTwins
from wsmux.bus.wire.keys import Identity
from wsmux.runtime.deadline import Deadline

from ..helpers.commands import run_here, running
from ..helpers.raw_peer import WAIT


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_it_serves_a_directory(tmp_path: Path, more: list[str]) -> None:
    database = str(tmp_path / "twins.db")
    with running("registrar", database, "--listen", "127.0.0.1:0", *more) as line:
        twins = HttpTwins(json.loads(line)["url"] if more else line)
        made = twins.register(Identity.generate(), ["relay.test"], None, Deadline(WAIT))
        assert made is not None
        assert twins.get(1, Deadline(WAIT)) == made
        twins.close()


def test_a_database_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    done = run_here("registrar", str(tmp_path), "--listen", "127.0.0.1:0")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"cannot be used" in done.stderr
