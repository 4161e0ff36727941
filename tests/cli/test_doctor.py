"""Have ``wsmux doctor`` examine servers, as a user would."""

from __future__ import annotations

import json

import pytest

from wsmux.cli.main import main

from ..helpers.broken_setups import answering, echoing
from ..helpers.ports import free_port
from ..helpers.proxies import playing


def examined(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["doctor", "--idle", "0.05", *arguments])
    told = capsys.readouterr()
    assert told.err == ""
    return status, told.out


def test_a_healthy_server_is_told_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    with echoing() as server:
        status, told = examined(capsys, server.url)
    assert status == 0
    lines = told.splitlines()
    assert lines[0].split() == ["ok", "dns", "127.0.0.1", "is", "already", "an", "address"]
    assert any(line.startswith("-    load") for line in lines)


def test_a_failure_comes_with_its_fix_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    with playing(answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")) as port:
        status, told = examined(capsys, f"ws://127.0.0.1:{port}/")
    assert status == 1
    lines = told.splitlines()
    failed = next(place for place, line in enumerate(lines) if line.startswith("FAIL upgrade"))
    assert lines[failed + 1].strip().startswith("-> check the path")


def test_what_was_found_comes_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    status, told = examined(capsys, "--json", f"ws://127.0.0.1:{port}/")
    assert status == 1
    report = json.loads(told)
    assert not report["ok"]
    [failed] = [step for step in report["steps"] if step["status"] == "failed"]
    assert failed["name"] == "tcp"
    assert "refused" in failed["fact"]
    assert failed["fix"].startswith("start the server")


@pytest.mark.parametrize("protocol", ["wsmux", "yamux"])
def test_a_plain_socket_is_examined_too(capsys: pytest.CaptureFixture[str], protocol: str) -> None:
    with echoing(transport="tcp", protocols=[protocol]) as server:
        status, told = examined(capsys, "--protocol", protocol, server.url)
    assert status == 0
    assert "by agreement" in told
