"""The client of ``wsmux demo`` notices what is wrong, and the command fails then."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from wsmux.cli import demo

from ..helpers.raw_peer import WAIT
from ..helpers.werkzeug_server import serving

pytestmark = pytest.mark.tools

FILES = ("--only", "files")


def main(*arguments: str) -> int:
    """Run the demonstration in this process, to break it."""
    from wsmux.cli.main import parser

    return demo.run(parser().parse_args(["demo", *arguments]))


def test_a_wrong_hash_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("wsmux.cli.demo_client")
    send = client._send_hashed

    def wrong(*arguments: object) -> tuple[int, bytes]:
        size, digest = send(*arguments)
        return size, digest[::-1]

    monkeypatch.setattr(client, "_send_hashed", wrong)
    assert main(*FILES, "--limit", "3", "--server", "werkzeug", "--json") == 1


def test_a_missing_report_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("wsmux.cli.demo_client")
    monkeypatch.setattr(client._Reports, "take", lambda self, stream: None)
    monkeypatch.setattr(client, "PATIENCE", 1.0)
    assert main(*FILES, "--limit", "3", "--server", "werkzeug", "--json") == 1


def test_a_request_ends_behind_the_thread_that_closes_its_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise what is done to the socket is done to another that got its number."""
    application = pytest.importorskip("wsmux.cli.demo_app")
    client = pytest.importorskip("wsmux.cli.demo_client")
    server = application.simple_websocket.Server
    receiving: list[bool] = []
    ended = threading.Event()
    handle, end = server._handle_events, application.end_at_server

    def handled(websocket: Any) -> bool:
        goes_on: bool = handle(websocket)
        if not goes_on:
            ended.wait(0.3)  # it comes in time only where the request does not wait for this thread
        return goes_on

    def end_of_request(environ: Mapping[str, Any]) -> None:
        receiving.extend("simple_websocket" in each.name for each in threading.enumerate())
        ended.set()
        end(environ)

    monkeypatch.setattr(server, "_handle_events", handled)
    monkeypatch.setattr(application, "end_at_server", end_of_request)
    file = tmp_path / "file"
    file.write_bytes(b"content")
    with serving(application.app) as port:
        files = [("file", file)]
        outcome = client.over_one_websocket_each(f"127.0.0.1:{port}", files, 1, lambda count: None)
        assert ended.wait(WAIT)
    assert outcome.hashes_right == 1, outcome.failures
    assert receiving
    assert not any(receiving)
