"""``wsmux demo``, the first half of it, with a few files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..helpers.commands import PATIENCE, command, run

pytestmark = pytest.mark.tools

FILES = ("--only", "files")

SERVERS = ["gunicorn", "gunicorn-gevent", "gevent", "werkzeug"]


@pytest.mark.parametrize("server", SERVERS)
def test_every_file_and_report_is_checked(server: str) -> None:
    done = run("demo", *FILES, "--server", server, "--limit", "25", "--json", "--threads", "8")
    assert done.returncode == 0, done.stderr.decode()
    ours, single = json.loads(done.stdout)["variants"]
    assert ours["connections"] == 1
    assert ours["hashes_right"] == ours["reports_right"] == ours["files"] == 25
    assert single["hashes_right"] == single["connections"] == 25
    assert ours["bytes"] == single["bytes"]
    assert ours["failures"] == single["failures"] == []


def test_the_table_names_its_conditions() -> None:
    done = run("demo", *FILES, "--limit", "5", "--server", "werkzeug", without=("rich", "tqdm"))
    text = done.stdout.decode()
    assert done.returncode == 0
    assert "one WebSocket per file" in text
    assert "connecting and closing are part of its time" in text
    assert "5 right" in text


def test_no_flask_names_what_to_install() -> None:
    done = run("demo", *FILES, "--limit", "1", without=("flask",))
    assert done.returncode == 1
    assert b"pip install 'wsmux-streams[demo]'" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_ctrl_c_ends_the_server_too() -> None:
    process = subprocess.Popen(
        command("demo", *FILES, "--server", "werkzeug"),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stderr is not None
    process.stderr.readline()  # the files are listed, the server is starting
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    while not (pids := Path(children).read_text().split()):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
