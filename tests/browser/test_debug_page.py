"""Open the live page in a real Chromium, headless, and read what it has made of the numbers."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.cluster import Cluster, ClusterStatus, NodeStatus
from wsmux.diagnostics.status import SESSION_TOTALS, document
from wsmux.flask import debug_page

from ..helpers.browser.chromium import HEADLESS, browser, opened
from ..helpers.cluster_nodes import asked, start_node
from ..helpers.inside import record_of
from ..helpers.joined_streams import fill, open_pair
from ..helpers.programs import needs
from ..helpers.redis_server import RedisServer, redis_server
from ..helpers.rpc.four_kinds import Held, begun
from ..helpers.waiting import wait_for
from ..helpers.werkzeug_server import TOKEN, shown

redis = pytest.fixture(scope="module", name="redis")(redis_server)

pytestmark = [pytest.mark.tools, pytest.mark.hang_bound(120.0)]

# Milliseconds of the page's own time, which stands still while it waits for the server.
BUDGET = 2500

# Seconds for a browser to start and end on a busy machine.
PATIENCE = 90


Browse = Callable[[str], str]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """Return ``browse(url)``, which opens a page and returns its document as HTML."""
    program = needs("chromium")

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
        wait_for(lambda: record_of(held.far).buffer.size == size)
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


def test_a_session_is_shown_with_what_it_holds(browse: Browse) -> None:
    held = Held()
    with (
        rpc.serve([held.service], workers=1) as server,
        rpc.connect(server.url, client_id="<b>web-7</b>") as client,
    ):
        upload, waits = begun(client, rpc.Kind.UPLOAD), begun(client, rpc.Kind.STREAM)
        assert held.part is not None  # its handler runs
        upload.write("x" * 20_000)  # type: ignore[union-attr]
        wait_for(lambda: server.list_sessions()[0].unread_messages == 1)
        with shown(server, client) as url:
            document = browse(url)
        secret = server.list_sessions()[0].session_id
        for each in (waits, upload):
            each.cancel()
        held.go.set()
    seen = Seen(document)
    here, there = seen.of("session")
    for each in (here, there):
        assert "<b>web-7</b>" in each["text"]
        assert "connected, " in each["text"]
    assert "calls SERVER" in here["text"]
    assert "served by SERVER" in there["text"]
    facts = " ".join(there["text"].split())
    assert "open calls 2 running handlers 1 calls without a worker 1" in facts
    assert "not read 1 message, 20 KiB" in facts
    assert not seen.of("connection")
    assert "No connection is open in this process." not in seen.texts
    assert secret not in document


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


def test_all_processes_are_shown_and_the_one_that_stands_still(
    browse: Browse, redis: RedisServer
) -> None:
    client, server = wsmux.pair()
    with client, server, Cluster(redis.url) as one, Cluster(redis.url) as two:
        streams = open_pair(client, server)
        size = fill(streams.near)
        wait_for(lambda: record_of(streams.far).buffer.size == size)
        process = start_node(redis.url, "default", "user:2", lease=60.0)
        try:
            with two.member(server, "<b>user:1</b>"), shown(cluster=one) as url:
                asked(one, two)
                process.send_signal(signal.SIGSTOP)
                seen = Seen(browse(f"{url}#cluster"))
            halted, well = two.node, one.node
        finally:
            process.kill()
            process.communicate()
    nodes = {each["data-node"]: each for each in seen.of("node")}
    assert len(nodes) == 3
    assert "stalled" in nodes[halted]["class"].split()
    assert "<b>user:1</b>" in nodes[halted]["text"]
    assert f"{size} bytes lie unread on stream" in nodes[halted]["text"]
    assert "stalled" not in nodes[well]["class"].split()
    (silent,) = (each for node, each in nodes.items() if node not in (halted, well))
    assert f"process {process.pid}" in silent["text"]
    assert "no answer within 2 s: its process may stand still" in silent["text"]
    assert "open" in silent
    [connection] = seen.of("connection")
    assert connection["data-name"] == server.name
    texts = " ".join(seen.texts)
    assert "processes 3 without an answer 1 connections 1" in " ".join(texts.split())


# One look after another, at the click of the button.
SWITCHED = """
const until = async (held) => {
  for (let i = 0; i < 600 && !held(); i++) await new Promise((done) => setTimeout(done, 50));
};
const button = document.getElementById("switch"), said = document.getElementById("process");
const told = [];
for (const begins of ["process ", "cluster ", "process "]) {
  await until(() => said.textContent.startsWith(begins));
  const main = document.querySelector("main");
  told.push([button.textContent, button.hidden, main.offsetParent !== null]);
  button.click();
}
return told;
"""


def test_a_button_switches_between_one_process_and_all(devtools: int) -> None:
    with (
        Cluster() as cluster,
        shown(cluster=cluster) as url,
        opened(devtools, "about:blank") as page,
    ):
        page.load(url.replace("://", f"://anybody:{TOKEN}@"))
        assert page.run(SWITCHED) == [
            ["All processes", False, True],
            ["One process", False, False],
            ["All processes", False, True],
        ]


def test_without_a_cluster_there_is_no_button(devtools: int) -> None:
    with shown() as url, opened(devtools, "about:blank") as page:
        page.load(f"{url.replace('://', f'://anybody:{TOKEN}@')}#cluster")
        assert page.run("""return document.getElementById("switch").hidden""") is True
        assert page.run("""return document.body.classList.contains("whole")""") is False


# What does not fit: elements that are seen and reach further right than the page is wide.
SCROLLED = """
for (let i = 0; i < 600 && !document.querySelector(".connection .findings li"); i++) {
  await new Promise((done) => setTimeout(done, 50));
}
for (const each of document.querySelectorAll("details")) each.open = true;
const wide = [...document.querySelectorAll("body *")].filter(
  (each) => each.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5);
return {
  width: innerWidth,
  scrolls: document.documentElement.scrollWidth > document.documentElement.clientWidth,
  wide: wide.map((each) => each.tagName + "." + each.className + ": " + each.textContent),
  streams: document.querySelectorAll("details.stream").length,
  sessions: document.querySelectorAll("details.session").length,
};
"""


def lengthened(*given: Any) -> dict[str, Any]:
    """Return what there is to show, with the longest texts and numbers that it may have."""
    seen = document(*given)
    long = {"seconds": 5940.0, "thread": "ThreadPoolExecutor-12_34-" + "worker" * 10}
    for connection in seen["connections"]:
        connection["name"] = f"wsmux-server-{'x' * 80}-1"
        connection["path"] = "/" + "segment" * 20 + "?query=" + "value" * 10
        connection["remote_address"] = "2001:db8:1111:2222:3333:4444:5555:6666"
        connection |= {"stalled": 5940.0, "bytes_sent": 2**52, "bytes_received": 2**52}
        text = "the thread " + "a" * 90 + " waits for stream 4611686018427387903"
        connection["findings"] = [{"stalled": True, "text": text}]
        for stream in connection["shown_streams"]:
            stream["id"] = str(2**62 - 1 - int(stream["id"]))
            stream |= {"stalled": 5940.0, "reader": long, "writer": long, "writing": "closed"}
            stream |= {"bytes_sent": 2**52, "bytes_received": 2**52, "credit": 2**32 - 1}
    for session in seen["sessions"]:
        session |= {"client_id": "c" * 200, "server_id": "s" * 200, "ends_in": 5940.0, "age": 1e9}
        session |= {"state": "waiting_for_reconnect", "state_age": 5940.0, "connections": 10**6}
        session |= dict.fromkeys(SESSION_TOTALS, 2**52)
    return seen


@pytest.fixture(scope="module")
def devtools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with browser(tmp_path_factory.mktemp("chromium")) as port:
        yield port


class Lengthened:
    """A cluster of one process, with the longest texts that it may have."""

    def __init__(self, *sources: Any) -> None:
        self._sources = sources

    def status(self, *, stalled_after: float) -> Any:
        status = lengthened(self._sources, stalled_after)
        names = [f"{number}{'x' * 255}" for number in range(20)]
        facts = {"host": "h" * 64, "pid": 4194304, "renewed": 3599.0, "members": 99999}
        node = NodeStatus("a" * 32, names=names, status=status, why="w" * 300, **facts)
        silent = node._replace(node="b" * 32, status=None)
        whole = node._replace(node="c" * 32, why="")
        return ClusterStatus("c" * 256, [node, silent, whole], 7, stalled_after)


@pytest.mark.parametrize("width", [320, 390, 700, 970, 1280])
def test_the_page_of_a_cluster_does_not_scroll_sideways(width: int, devtools: int) -> None:
    client, server = wsmux.pair()
    with client, server:
        pairs = [open_pair(client, server) for _ in range(3)]
        cluster = Lengthened(server)
        with shown(cluster=cluster) as url, opened(devtools, "about:blank") as page:
            page.resize(width, 740)
            page.load(f"{url.replace('://', f'://anybody:{TOKEN}@')}#cluster")
            seen = page.run(SCROLLED)
    assert (seen.pop("streams"), seen.pop("sessions")) == (len(pairs), 0)
    assert seen == {"width": width, "scrolls": False, "wide": []}


@pytest.mark.parametrize("width", [320, 360, 390, 700, 1280])
def test_the_page_does_not_scroll_sideways(
    width: int, devtools: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debug_page, "document", lengthened)
    client, server = wsmux.pair()
    with (
        client,
        server,
        rpc.serve([rpc.Service("test")]) as river,
        rpc.connect(river.url) as caller,
    ):
        caller.wait_connected(PATIENCE)
        pairs = [open_pair(client, server) for _ in range(5)]
        with shown(server, caller) as url, opened(devtools, "about:blank") as page:
            page.resize(width, 740)
            page.load(url.replace("://", f"://anybody:{TOKEN}@"))
            seen = page.run(SCROLLED)
    assert (seen.pop("streams"), seen.pop("sessions")) == (len(pairs), 1)
    assert seen == {"width": width, "scrolls": False, "wide": []}
