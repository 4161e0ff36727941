"""What a server says reaches the user's terminal as text, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import wsmux
from wsmux.cli.terminal import Table, show, talk
from wsmux.durable import DurableHandler, DurableRefused, ReceivedStream, Refusal

from ..helpers.commands import run_here
from ..helpers.durable import MemoryOffsets

FORGED = "\x1b[2Jx\r\ny\x9b8m"
SHOWN = r"\x1b[2Jx\r\ny\x9b8m"


def check(told: bytes) -> None:
    assert told.endswith(b"\n")
    assert told.count(b"\n") == 1
    assert told[:-1].decode().isprintable()
    assert SHOWN in told.decode()


def test_a_message_is_one_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    talk(f"wsmux: {FORGED}, \N{SNOWMAN}")
    assert capsys.readouterr().err == f"wsmux: {SHOWN}, \N{SNOWMAN}\n"


def test_a_cell_of_a_table_is_text() -> None:
    assert str(Table("title", ("name",), [(FORGED,)])).split("\n") == ["title", "name", SHOWN]


def test_a_cell_that_rich_draws_is_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    markup = "[link=https://host]WRITE[/b]"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    show(Table("title", ("name", "what"), [(FORGED, markup)]))
    told = capsys.readouterr().out
    assert SHOWN in told
    assert markup in told


def leave(connection: wsmux.Connection) -> None:
    connection.close(code=1008, reason=FORGED)


def test_the_reason_of_a_close_is_text() -> None:
    with wsmux.serve(leave) as server:
        done = run_here("cat", server.url)
    assert done.returncode == 1
    check(done.stderr)


@contextmanager
def refusing(kind: Refusal) -> Iterator[str]:
    def refuse(stream: ReceivedStream) -> None:
        raise DurableRefused(kind, FORGED)

    handler = DurableHandler(refuse, offsets=MemoryOffsets())
    with wsmux.serve(stream_handler=handler) as server:
        yield server.url


def test_the_reason_of_a_refused_upload_is_text(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    with refusing(Refusal.EXISTS) as url:
        done = run_here("upload", str(tmp_path / "file"), url)
    assert done.returncode == 1
    check(done.stderr)


def test_what_doctor_finds_is_text() -> None:
    with wsmux.serve(leave) as server:
        told = run_here("doctor", "--idle", "0.05", server.url).stdout.decode()
    assert SHOWN in told
    assert all(line.isprintable() for line in told.split("\n"))
