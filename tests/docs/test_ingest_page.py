"""The programs of the page about ingest do what the page says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wsmux.spark import DataServer, GroupCommit, serve_data

from ..helpers.doc_pages import ROOT, blocks
from ..helpers.spark.arrow_data import SCHEMA
from ..helpers.spark.ingesting import held
from ..helpers.spark.inside import stores_of
from ..helpers.timeouts import WAIT

pytestmark = pytest.mark.spark

PAGE = (ROOT / "docs" / "howto" / "ingest.md").read_text()
PROGRAMS = blocks(PAGE, "python")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DataServer]:
    with serve_data(tmp_path / "data") as made:
        yield made


def told(name: str, url: str, folder: Path) -> str:
    """Return what a program of the page prints."""
    command = [sys.executable, "-c", PROGRAMS[name], url]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_program_and_the_one_that_goes_on(server: DataServer, tmp_path: Path) -> None:
    assert told("load.py", server.url, tmp_path) == blocks(PAGE, "text")["load.py"]
    file = tmp_path / "orders.csv"
    file.write_text("id,word\n10,a\n11,b\n")
    told("resume.py", server.url, tmp_path)
    with file.open("a") as more:
        more.write("12,c\n")
    told("resume.py", server.url, tmp_path)
    assert held(tmp_path / "data", "orders") == [1, 2, 3, 10, 11, 12]


def test_the_application(
    server: DataServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores_of(server)[0]
    store.commit(store.begin("orders", "create", SCHEMA).txn, [])
    monkeypatch.setenv("DATA_URL", server.url)
    names: dict[str, Any] = {"__name__": "app"}
    exec(PROGRAMS["app.py"], names)
    client = names["app"].test_client()
    answer = client.post("/orders", json={"id": 1, "word": "one"})
    assert (answer.status_code, answer.json) == (201, {"durable": True})
    assert held(tmp_path / "data", "orders") == [1]
    answer = client.post("/orders", json={"id": "x", "word": "one"})
    assert (answer.status_code, "column 'id'" in answer.json["error"]) == (400, True)
    names["orders"]().close()


def test_the_bounds_are_those_of_the_page() -> None:
    bounds = GroupCommit()
    mib = 1024 * 1024
    for line in (
        f"| `linger` | {bounds.linger * 1000:.0f} ms |",
        f"| `group_bytes` | {bounds.group_bytes // mib} MiB |",
        f"| `client_bytes` | {bounds.client_bytes // mib} MiB |",
        f"| `table_bytes` | {bounds.table_bytes // mib} MiB |",
    ):
        assert line in PAGE
