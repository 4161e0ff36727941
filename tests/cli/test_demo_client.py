"""The client of ``wsmux demo`` notices what is wrong, and the command fails then."""

from __future__ import annotations

import pytest

from wsmux.cli import demo

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
