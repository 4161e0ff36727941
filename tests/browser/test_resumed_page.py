"""A page's connection goes on over another WebSocket after its network was cut."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from flask import Flask

import wsmux
from wsmux.flask import Mux
from wsmux.testing import FaultProxy

from ..helpers.browser.chromium import Page, opened
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for
from ..helpers.werkzeug_server import serving

pytestmark = [pytest.mark.tools, pytest.mark.hang_bound(180.0)]

KIB = 1024


class Site:
    """An application behind a proxy, and a page of it that has a resumable connection."""

    def __init__(self, app: Flask, **options: Any) -> None:
        self.mux = Mux(app, **options)
        self.mux.stream_route("/echo")(self._echo)
        self.proxy: FaultProxy
        self.page: Page
        self.heard: SimpleQueue[bytes] = SimpleQueue()

    def _echo(self, stream: wsmux.Stream) -> None:
        while data := stream.read(64 * KIB):
            self.heard.put(data)
            stream.write(data)

    def connection(self) -> wsmux.Connection:
        wait_for(lambda: len(self.mux.connections) == 1)
        return self.mux.connections[0]


@pytest.fixture
def site(app: Flask, devtools: int) -> Iterator[Site]:
    made = Site(app, resume=wsmux.Resume(grace=30))
    with serving(app) as port, FaultProxy(port) as made.proxy:
        with opened(devtools, f"http://127.0.0.1:{made.proxy.port}/") as made.page:
            made.page.run(
                "globalThis.mux = new Wsmux('/echo', { resume: true }); await mux.ready;"
                "globalThis.stream = await mux.createBidirectionalStream();"
            )
            yield made
        made.mux.shutdown(0)


def test_a_page_asks_for_a_resumable_connection_and_gets_it(site: Site) -> None:
    assert site.page.run("return [mux.resumable, mux.reconnects]") == [True, 0]
    assert site.connection().resumable


@pytest.mark.parametrize("how", ["rst", "fin"])
def test_bytes_of_both_ways_are_exact_over_cuts(site: Site, how: Any) -> None:
    site.proxy.cut_after(*[150_001] * 8, way="down", how=how)
    site.proxy.cut_after(*[170_003] * 8, way="up", how=how)
    digest = site.page.run(
        """
        const sent = pattern(2 * 1024 * 1024, 3);
        const parts = Array.from({ length: 64 }, (_, i) => sent.slice(32768 * i, 32768 * (i + 1)));
        const writing = write(stream, ...parts);
        const came = new Uint8Array(await new Response(stream.readable).arrayBuffer());
        await writing;
        const digest = (bytes) => crypto.subtle.digest("SHA-256", bytes);
        const hash = async (bytes) => Array.from(new Uint8Array(await digest(bytes)));
        return [await hash(sent), await hash(came), mux.reconnects];
        """
    )
    sent, came, reconnects = digest
    assert bytes(came) == bytes(sent) != hashlib.sha256().digest()
    assert reconnects >= 8
    assert site.connection().stats().reconnects >= 8
    assert site.page.run("return globalThis.mux.close()") is None
    wait_for(lambda: not site.mux.connections)


def test_a_changed_network_is_noticed_before_the_old_socket_has_failed(site: Site) -> None:
    site.page.run("globalThis.dispatchEvent(new Event('online'));")
    assert site.page.run("await write(stream, 'on'); return text(stream.readable)") == "on"
    assert site.page.run("return mux.reconnects") == 1


def test_a_message_of_the_server_waits_for_the_page(site: Site) -> None:
    connection = site.connection()
    site.proxy.refusing = True
    site.proxy.cut("rst")
    wait_for(lambda: connection.stats().detached is not None)
    answers: list[bytes] = []

    def ask() -> None:
        with connection.open_stream(WAIT) as stream:
            stream.write(b"are you there?")
            stream.close_write()
            stream.timeout = WAIT
            answers.append(stream.readall())

    asking = threading.Thread(target=ask)
    asking.start()
    site.proxy.refusing = False
    site.page.run(
        """
        const { value } = await mux.incomingBidirectionalStreams.getReader().read();
        await write(value, (await text(value.readable)).toUpperCase());
        """
    )
    asking.join(WAIT)
    assert answers == [b"ARE YOU THERE?"]


def test_a_close_of_the_server_is_an_end_and_no_outage(site: Site) -> None:
    site.connection().close(code=1000, reason="enough")
    script = "const { closeCode, reason } = await mux.closed; return [closeCode, reason]"
    assert site.page.run(script) == [1000, "enough"]
    assert site.proxy.accepted <= 4  # the page, its module, its icon, its connection


def test_a_reason_that_no_close_frame_holds_changes_nothing(site: Site) -> None:
    script = "try { mux.close({ reason: 'ä'.repeat(62) }); } catch (error) { return error.name; }"
    assert site.page.run(script) == "SyntaxError"
    assert site.page.run("await write(stream, 'on'); return text(stream.readable)") == "on"
    site.page.run("mux.close({ reason: 'x'.repeat(123) })")
    wait_for(lambda: not site.mux.connections)


@pytest.mark.parametrize("event", ["pagehide", "visibilitychange"])
def test_a_page_that_is_left_ends_its_session_behind_its_last_words(site: Site, event: str) -> None:
    connection = site.connection()
    site.page.run(
        f"""
        const writer = stream.writable.getWriter();
        await writer.write(encode("hello"));
        await stream.readable.getReader().read();  // so there is credit, and nothing else to echo
        addEventListener("{event}", () => writer.write(encode("farewell")));
        """
    )
    assert site.heard.get(timeout=WAIT) == b"hello"
    site.page.load(f"http://127.0.0.1:{site.proxy.port}/")
    assert site.heard.get(timeout=WAIT) == b"farewell"
    wait_for(lambda: not site.mux.connections)  # long before the grace is over
    assert "1001" in connection.explain()[0].text


def test_another_server_process_does_not_know_the_session(site: Site, app: Flask) -> None:
    other = Flask("other")
    Mux(other, resume=True).stream_route("/echo")(lambda stream: None)
    with serving(other) as port:
        site.proxy.target = ("127.0.0.1", port)
        site.proxy.cut("rst")
        told = site.page.run("return caught(mux.closed)")
    assert told["source"] == "session"
    assert "the session is lost: this server does not have the session" in told["message"]


def test_a_server_that_does_not_resume_gives_an_ordinary_connection(
    app: Flask, devtools: int
) -> None:
    site = Site(app)
    with serving(app) as port, opened(devtools, f"http://127.0.0.1:{port}/") as page:
        page.run("globalThis.mux = new Wsmux('/echo', { resume: true }); await mux.ready;")
        assert page.run(
            """
            const stream = await mux.createBidirectionalStream();
            await write(stream, "plain");
            return [mux.resumable, await text(stream.readable)];
            """
        ) == [False, "plain"]
        assert not site.connection().resumable
        page.run("mux.close()")
