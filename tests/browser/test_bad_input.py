"""Have servers break the protocol: a page ends the connection with 4002 and a sentence."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest
import simple_websocket
from flask import Flask, request
from werkzeug.wrappers import Response

from wsmux.flask.responses import Ended

from ..helpers.browser.chromium import Page
from ..helpers.scripted import WAIT

pytestmark = [pytest.mark.tools, pytest.mark.hang_bound(180.0)]

WINDOW = 256 * 1024


class Heard(NamedTuple):
    """Hold what a page sent, in hex, and how it closed."""

    messages: list[str]
    code: int
    reason: str


class Script:
    """Serve ``/raw``: send messages, and keep what the page says to them."""

    def __init__(self, app: Flask) -> None:
        self.messages: list[bytes | str] = []
        self.heard: SimpleQueue[Heard] = SimpleQueue()
        app.add_url_rule("/raw", view_func=self._serve, websocket=True)

    def _serve(self) -> Response:
        socket: Any = simple_websocket.Server.accept(request.environ, subprotocols=["wsmux.v1"])
        messages: list[str] = []
        for message in self.messages:
            socket.send(message)
        try:
            while True:
                messages.append(socket.receive().hex())
        except simple_websocket.ConnectionClosed as end:
            self.heard.put(Heard(messages, end.reason, end.message))
        return Ended("werkzeug")


@pytest.fixture
def script(app: Flask) -> Script:
    return Script(app)


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([""], "empty message"),
        (["40"], "message without a whole stream id"),
        (["c00000000000"], "message without a whole stream id"),
        (["e00000000000000000"], "the stream id 2305843009213693952 is above 2^53-1"),
        (["00"], "message for stream 0 ends before its type"),
        (["0105"], "message for stream 1 has the unknown type 5"),
        (["010100"], "ACK on stream 1 has a body of the wrong length"),
        (["01010000000000"], "ACK on stream 1 has a body of the wrong length"),
        (["0001000000ff"], "stream 0 has the parity of the client, which has not opened it"),
        (["0000ff"], "stream 0 has the parity of the client, which has not opened it"),
        (["0100ff"], "the first message on stream 1 is DATA, not ACK"),
        (["01020000"], "the first message on stream 1 is ERROR, not ACK"),
        (["010300"], "the first message on stream 1 is CLOSE, not ACK"),
        (["0102"], "ERROR on stream 1 without a direction"),
        (["01020200"], "ERROR on stream 1 with the direction 2"),
        (["010200"], "ERROR on stream 1 without a whole code"),
        (["01020040"], "ERROR on stream 1 without a whole code"),
        (["0102000000"], "ERROR on stream 1 has a body of the wrong length"),
        (["0103"], "CLOSE on stream 1 without a direction"),
        (["01030000"], "CLOSE on stream 1 has a body of the wrong length"),
        (["0004"], "GO_AWAY without exactly one code"),
        (["00040000"], "GO_AWAY without exactly one code"),
        (["010400"], "GO_AWAY names stream 1; the next one here would be 0"),
        (["020400"], "GO_AWAY names stream 2; the next one here would be 0"),
        (["0101ffffffff", "010100000001"], "lifts the unspent credit of 4294967295 above 2^32-1"),
        (["0101000000ff", "010300", "0100ff"], "DATA on stream 1 after the peer ended"),
        (["text"], "a text message"),
    ],
)
def test_a_broken_rule_ends_the_connection(
    script: Script, page: Page, messages: list[str], why: str
) -> None:
    script.messages = ["text"] if messages == ["text"] else [bytes.fromhex(m) for m in messages]
    told = page.run("globalThis.mux = new Wsmux('/raw'); return caught(mux.closed)")
    assert told["message"].startswith("the server broke the protocol: ")
    assert why in told["message"]
    heard = script.heard.get(timeout=WAIT)
    assert heard.code == 4002
    assert why in heard.reason


@pytest.mark.parametrize(
    ("messages", "answers"),
    [
        # More than the credit: the stream is reset, the rest goes on.
        (["0101000000ff", "0100" + "ff" * (WINDOW + 1)], ["01020102"]),
        # Ends, each echoed once, and what is late.
        (["0101000000ff", "010300"], ["010301"]),
        (["0101000000ff", "010300", "010300", "01020000"], ["010301"]),
        (["0101000000ff", "010301"], ["010300"]),
        (["0101000000ff", "0102004045"], ["0102014045"]),
        (["0101000000ff", "0102014045"], ["0102004045"]),
        (["0101000000ff", "01020000", "01020100", "0100ffff", "010300"], ["01020100", "01020000"]),
        # Ids left out are taken for ended ones.
        (["0501000000ff", "01010000ffff"], []),
        # A stream that is over may still be given credit.
        (["0101000000ff", "01020000", "01020100", "010100000001"], ["01020100", "01020000"]),
        # GO_AWAY, twice.
        (["000400", "000400"], []),
    ],
)
def test_what_is_allowed_is_answered_and_goes_on(
    script: Script, page: Page, messages: list[str], answers: list[str]
) -> None:
    # The last is a stream, whose opening tells that everything before was taken.
    script.messages = [bytes.fromhex(m) for m in [*messages, "1f01000000ff"]]
    page.run(
        """
        const mux = new Wsmux("/raw"), streams = mux.incomingBidirectionalStreams.getReader();
        for (;;) {
          const { value } = await streams.read();
          if (value.id === 31) break;
          globalThis.kept = value;
        }
        mux.close({ closeCode: 3000 });
        """
    )
    heard = script.heard.get(timeout=WAIT)
    window = f"01{WINDOW:08x}"
    taken = [m for m in heard.messages if not m.endswith(window)]
    assert (heard.code, taken) == (3000, answers)


def test_streams_that_are_not_answered_are_bounded(script: Script, page: Page) -> None:
    counts = page.run(
        """
        const mux = new Wsmux("/raw");
        let opened = 0;
        const open = async () => { await mux.createBidirectionalStream(); opened += 1; };
        const all = Array.from({ length: 300 }, open);
        await all[255];
        const before = opened;
        mux.close();
        return [before, (await Promise.allSettled(all)).filter((each) => each.reason).length];
        """
    )
    assert counts == [256, 44]
    assert len(script.heard.get(timeout=WAIT).messages) == 256


def test_an_answer_lets_the_next_one_open(script: Script, page: Page) -> None:
    page.run(
        """
        const WebSocketOfThePage = WebSocket;
        globalThis.WebSocket = class extends WebSocketOfThePage {
          set onmessage(take) { globalThis.answer = take; }
        };
        globalThis.mux = new Wsmux("/raw");
        globalThis.all = Array.from({ length: 257 }, () => mux.createBidirectionalStream());
        await all[255];
        answer({ data: new Uint8Array([0, 1, 0, 0, 0, 255]).buffer });
        await all[256];
        mux.close();
        """
    )
    assert len(script.heard.get(timeout=WAIT).messages) == 257


@pytest.mark.parametrize(("announced", "early"), [(5, b"early"), (WINDOW, b"early bytes")])
def test_a_stream_is_written_before_its_answer_once_a_window_is_known(
    script: Script, page: Page, announced: int, early: bytes
) -> None:
    script.messages = [bytes.fromhex(f"0101{announced:08x}")]
    page.run(
        """
        const mux = new Wsmux("/raw");
        await mux.incomingBidirectionalStreams.getReader().read();
        const stream = await mux.createBidirectionalStream(), writer = stream.writable.getWriter();
        const written = writer.write(new TextEncoder().encode("early bytes"));
        await new Promise((done) => setTimeout(done, 50));
        mux.close();
        await written.catch(() => {});
        """
    )
    window = f"01{WINDOW:08x}"
    expected = [f"01{window}", f"00{window}", f"0000{early.hex()}"]
    assert script.heard.get(timeout=WAIT).messages == expected


def test_a_window_below_what_was_early_ends_the_connection(script: Script, page: Page) -> None:
    told = page.run(
        """
        const WebSocketOfThePage = WebSocket;
        globalThis.WebSocket = class extends WebSocketOfThePage {
          set onmessage(take) { globalThis.answer = take; }
        };
        const mux = new Wsmux("/raw");
        await mux.ready;
        answer({ data: new Uint8Array([1, 1, 0, 0, 0, 9]).buffer });
        await mux.createBidirectionalStream();
        answer({ data: new Uint8Array([0, 1, 0, 0, 0, 8]).buffer });
        return caught(mux.closed);
        """
    )
    assert "ACK of 8 bytes answers stream 0, where 9 could be expected" in told["message"]
    assert script.heard.get(timeout=WAIT).code == 4002
