"""Open the live page in a real Chromium, headless, and read what it has made of the numbers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

import wsmux

from ..browser.chromium import HEADLESS, chromium
from ..threads.joined import fill, open_pair
from ..threads.waiting import wait_for
from .test_top import TOKEN, shown

pytestmark = [pytest.mark.tools, pytest.mark.hang_bound(120.0)]

# Milliseconds of the page's own time, which stands still while it waits for the server.
BUDGET = 2500

# Seconds for a browser to start and end on a busy machine.
PATIENCE = 90


Browse = Callable[[str], str]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """Return ``browse(url)``, which opens a page and returns its document as HTML."""
    program = chromium()

    def open_page(url: str) -> str:
        done = subprocess.run(
            [
                program,
                *HEADLESS,
                f"--user-data-dir={tmp_path}",
                f"--virtual-time-budget={BUDGET}",
                "--dump-dom",
                url.replace("://", f"://anybody:{TOKEN}@"),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return open_page


class Seen(HTMLParser):
    """Collect the drop-downs of a document: their kinds, keys and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.drop_downs: list[dict[str, str]] = []
        self.texts: list[str] = []
        self.scripts = 0
        self._open: list[dict[str, str]] = []
        self._tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tags.append(tag)
        self.scripts += tag == "script"
        if tag == "details":
            known = {name: value or "" for name, value in attrs}
            self._open.append({"text": "", **known})
            self.drop_downs.append(self._open[-1])

    def handle_endtag(self, tag: str) -> None:
        if tag == "details":
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._tags and self._tags[-1] not in ("script", "style"):
            self.texts.append(data)
        for each in self._open:
            each["text"] += f"{data} "

    def of(self, kind: str) -> list[dict[str, str]]:
        return [each for each in self.drop_downs if kind in each["class"].split()]


def test_a_stalled_stream_is_shown_as_stalled(browse: Browse) -> None:
    client, server = wsmux.pair()
    with client, server:
        held, quiet = open_pair(client, server), open_pair(client, server)
        size = fill(held.near)
        wait_for(lambda: held.far._entry.buffer.size == size)
        wait_for(lambda: server.explain()[0].seconds > 0.02)
        with shown(server, stalled_after=0.02) as url:
            seen = Seen(browse(url))
    [connection] = seen.of("connection")
    assert connection["data-name"] == server.name
    assert "stalled" in connection["class"].split()
    assert "open" in connection  # what stalls is unfolded
    assert (
        f"{size} bytes lie unread on stream {held.near.id}, nobody is reading it"
        in (connection["text"])
    )
    streams = {each["data-id"]: each for each in seen.of("stream")}
    assert set(streams) == {str(held.near.id), str(quiet.near.id)}
    assert "stalled" in streams[str(held.near.id)]["class"].split()
    assert "256 KiB" in streams[str(held.near.id)]["text"]
    assert "stalled" not in streams[str(quiet.near.id)]["class"].split()
    assert "stalled" not in streams[str(quiet.near.id)]["text"]


def test_what_a_client_asked_for_stays_text(browse: Browse) -> None:
    path = "/<script>document.title='taken'</script><img src=x>"
    with (
        wsmux.serve(lambda connection: connection.wait_closed()) as server,
        wsmux.connect(f"{server.url}{path.replace(' ', '%20')}"),
    ):
        wait_for(lambda: server.connections)
        with shown(*server.connections) as url:
            document = browse(url)
    seen = Seen(document)
    assert seen.scripts == 1
    assert "<title>wsmux</title>" in document
    [connection] = seen.of("connection")
    assert "<script>document.title='taken'</script>" in connection["text"]


def test_no_connection_is_said_to_be_none(browse: Browse) -> None:
    with shown() as url:
        seen = Seen(browse(url))
    assert not seen.drop_downs
    assert "No connection is open in this process." in seen.texts
