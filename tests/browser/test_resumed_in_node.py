"""Have the server of a page in Node, and what is between, do what no test can ask of real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from wsmux.protocols.resumption import Hello, MessageType, Welcome, end_body, parse_hello

from ..helpers.browser.node_page import NodePage, node_page
from ..helpers.machine_pairs import ACK, CLOSE, DATA, READ, message, uint32

pytestmark = [pytest.mark.tools, pytest.mark.hang_bound(180.0)]

EPOCH = b"an epoch"
GRACE = 30  # seconds
WINDOW = uint32(256 * 1024)

# No signature is checked here, and none computed: that would end at a time of its own.
PRELUDE = """
const page = new EventTarget();
globalThis.addEventListener = page.addEventListener.bind(page);
globalThis.removeEventListener = page.removeEventListener.bind(page);
globalThis.fire = (name, told) => page.dispatchEvent(Object.assign(new Event(name), told));
crypto.subtle.importKey = async () => "a key";
crypto.subtle.sign = async () => new ArrayBuffer(32);
globalThis.mux = new Wsmux("ws://server.test/", { resume: true });
globalThis.told = null;
mux.closed.then(
  ({ closeCode, reason }) => { told = [closeCode, reason]; },
  ({ message }) => { told = message; },
);
"""


def carried(body: bytes) -> bytes:
    return bytes((MessageType.DATA,)) + body


def end(code: int, reason: str = "") -> bytes:
    return bytes((MessageType.END,)) + end_body(code, reason)


def acknowledgement(position: int, size: int = 8) -> bytes:
    return bytes((MessageType.ACK,)) + position.to_bytes(size, "big")


class Session:
    """A resumable connection of a page, whose server is the test.

    Attributes:
        page: the page.
        received: the position up to which the server has received what the page sent.
    """

    def __init__(self, page: NodePage) -> None:
        self.page = page
        self.received = 0
        page.run(PRELUDE)

    # The page

    @property
    def carriers(self) -> int:
        """How many WebSockets the page has asked for."""
        count: int = self.page.run("return carriers")
        return count

    @property
    def told(self) -> Any:
        """What ``closed`` has told: code and reason, or the text of the error."""
        return self.page.run("return told")

    def open_stream(self) -> None:
        """Have the page open a stream, which the server answers."""
        self.page.run(
            "globalThis.stream = await mux.createBidirectionalStream();"
            "globalThis.writer = stream.writable.getWriter();"
        )
        self.take_sent()
        self.page.take(carried(message(0, ACK, WINDOW)))

    def write(self, text: str) -> None:
        self.page.run(f"writer.write(encode({json.dumps(text)})).catch(() => {{}})")

    # The server, and what is between

    def attach(self) -> Hello:
        """Accept the page's last WebSocket; return its HELLO. What is not taken by then is lost."""
        self.page.sent.clear()
        self.page.run("socket.onopen()")
        hello, _, _ = parse_hello(self.page.sent.pop())
        self.page.take(Welcome(EPOCH, self.received, GRACE).encode())
        return hello

    def take_sent(self) -> list[bytes]:
        """Receive what the page has sent of what it keeps."""
        sent, self.page.sent[:] = list(self.page.sent), []
        kept = [each for each in sent if each[0] in (MessageType.DATA, MessageType.END)]
        self.received += sum(len(each) - 1 for each in kept)
        return kept

    def lose(self, code: int = 1006, reason: str = "", *, clean: bool = False) -> None:
        """End the WebSocket, with a close frame if it is clean."""
        event = {"code": code, "reason": reason, "wasClean": clean}
        self.page.run(f"socket.onclose({json.dumps(event)})")

    def elapse(self, milliseconds: int) -> bool:
        """Return whether the page has asked for another WebSocket meanwhile."""
        before = self.carriers
        self.page.run(f"elapse({milliseconds})")
        return self.carriers > before


@pytest.fixture
def session() -> Iterator[Session]:
    with node_page() as page:
        yield Session(page)


@pytest.fixture
def stream(session: Session) -> Session:
    """Return a session with a stream, nothing of which is unacknowledged."""
    session.attach()
    session.open_stream()
    session.page.take(acknowledgement(session.received))
    return session


# Carriers without progress


@pytest.mark.parametrize("kept", [True, False], ids=["of the page", "of the server"])
def test_carriers_that_a_message_kills_come_ever_more_slowly(stream: Session, kept: bool) -> None:
    if kept:
        stream.write("more than a gateway takes")
    stream.lose(1009, "too big", clean=True)
    carriers = 0
    for _ in range(120):
        if stream.elapse(25):
            carriers += 1
            stream.attach()
            stream.lose(1009, "too big", clean=True)
    assert 4 <= carriers <= 8  # in three seconds


def test_attempts_that_nobody_answers_make_no_chain_of_timers(session: Session) -> None:
    session.attach()
    session.lose()
    for _ in range(2):  # ten seconds each
        assert session.elapse(2000)
        assert session.page.run("elapse(10_000); return Math.max(...chains())") <= 2


def test_a_session_whose_message_kills_each_carrier_ends_with_the_grace(stream: Session) -> None:
    stream.write("more than a gateway takes")
    for _ in range(GRACE // 2 + 1):  # it runs from the end of the first that is sent it again
        stream.lose(1009, "too big", clean=True)
        assert stream.elapse(2000)
        stream.attach()
    assert stream.told is None
    stream.lose(1009, "too big", clean=True)
    assert stream.told == (
        "the server ended the connection: 1006, the session is lost: nothing got through for 30 s; "
        "the last connection ended with 1009, too big"
    )


def test_what_a_cut_carrier_has_delivered_begins_grace_and_pauses_anew(stream: Session) -> None:
    for _ in range(5):
        stream.write("delivered, but not acknowledged")
        stream.take_sent()
        stream.lose()
        assert stream.elapse(50)
        stream.elapse(9000)  # 45 s in all
        stream.attach()
    assert stream.told is None


def test_one_cut_behind_a_long_outage_begins_the_grace_anew(stream: Session) -> None:
    stream.write("written in a tunnel")
    stream.lose()
    assert stream.elapse((GRACE - 1) * 1000)
    stream.attach()
    stream.lose()  # before the server has acknowledged anything
    assert stream.elapse((GRACE - 1) * 1000)
    stream.lose()
    assert stream.told is None
    assert stream.elapse(1000)
    stream.lose()
    assert "nothing got through for 30 s" in stream.told


def test_a_carrier_that_has_stood_for_long_begins_grace_and_pauses_anew(stream: Session) -> None:
    stream.write("to a server that stands still")
    for _ in range(5):
        stream.lose()
        assert stream.elapse(50)
        stream.attach()
        stream.elapse(2 * GRACE * 1000)
    assert stream.told is None


def test_an_idle_connection_may_be_cut_as_often_as_one_likes(stream: Session) -> None:
    for _ in range(10):
        stream.elapse(20_000)
        stream.lose()
        assert stream.elapse(50)
        stream.attach()
    assert stream.told is None


# The end


def test_a_long_reason_is_refused_before_anything_is_sent(stream: Session) -> None:
    script = "try { mux.close({ reason: 'ä'.repeat(62) }); } catch (error) { return error.name; }"
    assert stream.page.run(script) == "SyntaxError"
    assert stream.page.sent == []
    stream.write("on")
    assert stream.take_sent() == [carried(message(0, DATA, b"on"))]


def test_a_reason_is_refused_in_an_outage_too(stream: Session) -> None:
    stream.lose()
    script = "try { mux.close({ reason: 'x'.repeat(124) }); } catch (error) { return error.name; }"
    assert stream.page.run(script) == "SyntaxError"
    assert stream.elapse(50)
    stream.attach()
    stream.write("on")
    assert stream.take_sent() == [carried(message(0, DATA, b"on"))]


def test_a_close_before_the_server_has_answered_is_an_end(session: Session) -> None:
    session.page.run("mux.close({ closeCode: 3001, reason: 'never mind' })")
    assert session.told == [3001, "never mind"]
    script = "return mux.ready.catch(({ message }) => message)"
    assert session.page.run(script) == "the connection was closed here"


def test_a_page_that_is_left_ends_its_session_behind_what_it_has_written(stream: Session) -> None:
    stream.write("the last words")
    stream.page.run("fire('pagehide', { persisted: false })")
    stream.write("too late")
    stream.page.run("mux.close()")
    assert stream.take_sent() == [carried(message(0, DATA, b"the last words")), end(1001)]


LEFT = "fire('pagehide', { persisted: false });"
HIDDEN = """
document.visibilityState = "hidden";
document.dispatchEvent(new Event("visibilitychange"));
fire("visibilitychange");  // it goes on to the window
"""


@pytest.mark.parametrize(
    ("name", "events"), [("visibilitychange", LEFT + HIDDEN), ("pagehide", HIDDEN + LEFT)]
)
def test_a_listener_of_a_page_that_is_left_closes_before_its_session_ends(
    stream: Session, name: str, events: str
) -> None:
    stream.page.run(
        f"""
        globalThis.document = Object.assign(new EventTarget(), {{ visibilityState: "visible" }});
        addEventListener("{name}", () => mux.close({{ closeCode: 3001, reason: "bye" }}));
        {events}
        """
    )
    assert stream.take_sent() == [end(3001, "bye")]


def test_a_page_that_was_to_be_left_and_runs_on_is_told_the_end(stream: Session) -> None:
    stream.page.run("fire('pagehide', { persisted: false })")
    stream.page.take(end(1001))
    stream.lose(1001, clean=True)
    assert stream.told == [1001, ""]


def test_a_page_that_may_come_back_keeps_its_session(stream: Session) -> None:
    stream.page.run("fire('pagehide', { persisted: true })")
    stream.write("on")
    assert stream.take_sent() == [carried(message(0, DATA, b"on"))]


@pytest.mark.parametrize("code", [1000, 1001, 1009])
def test_a_proxy_that_closes_has_not_delivered_the_end(stream: Session, code: int) -> None:
    stream.write("the last words")
    stream.page.run("mux.close({ closeCode: 3001, reason: 'done' })")
    stream.lose(code, clean=True)
    assert stream.elapse(50)
    stream.attach()
    assert stream.take_sent() == [carried(message(0, DATA, b"the last words")), end(3001, "done")]
    assert stream.page.closed == (3001, "done")
    stream.lose(3001, clean=True)
    assert not stream.elapse(GRACE * 1000)


def test_an_end_that_has_arrived_needs_no_further_carrier(stream: Session) -> None:
    stream.page.run("mux.close({ closeCode: 3001 })")
    stream.take_sent()
    stream.page.take(acknowledgement(stream.received))
    stream.lose()
    assert not stream.elapse(GRACE * 1000)


@pytest.mark.parametrize(
    "how", ["fire('online')", "socket.onclose({ code: 1006, wasClean: false })"]
)
def test_behind_the_end_of_the_server_no_carrier_is_wanted(stream: Session, how: str) -> None:
    stream.page.take(end(1000, "enough"))
    stream.page.run(how)
    assert stream.told == [1000, "enough"]
    assert not stream.elapse(GRACE * 1000)


def test_an_acknowledgement_may_come_behind_the_end(stream: Session) -> None:
    stream.write("more")
    stream.take_sent()
    stream.page.take(end(1000, "enough"))
    stream.page.take(acknowledgement(stream.received))
    stream.lose(1000, clean=True)
    assert stream.told == [1000, "enough"]


# What is kept


def test_short_messages_count_as_64_bytes(stream: Session) -> None:
    stream.lose()
    stream.page.run(
        """
        globalThis.written = 0;
        const byte = new Uint8Array(1);
        (async () => {
          for (; written < 70_000; written++) await writer.write(byte);
        })().catch(() => {});
        """
    )
    assert stream.page.run("return written") == 4 * 2**20 // 64


def test_what_is_acknowledged_is_not_sent_again_nor_counted(stream: Session) -> None:
    for each in "abc":
        stream.write(each)
    messages = stream.take_sent()
    stream.received -= len(messages[2]) - 1
    stream.page.take(acknowledgement(stream.received))
    stream.lose()
    assert stream.elapse(50)
    hello = stream.attach()
    assert hello.oldest == stream.received
    assert stream.take_sent() == messages[2:]


def test_a_server_that_never_acknowledges_the_answers_to_it_loses_the_session(
    stream: Session,
) -> None:
    opened = stream.page.run(
        """
        socket.send = () => {};
        const opening = new DataView(new ArrayBuffer(10));  // DATA with an ACK of a stream
        opening.setUint8(5, 1);
        let id = 1;
        for (; id < 2 ** 18 && !told; id += 2) {
          opening.setUint32(1, 0x80000000 + id);
          opening.setUint32(6, 262144);
          socket.onmessage({ data: opening.buffer.slice() });
          if (id % 8192 === 1) await new Promise((done) => setImmediate(done));
        }
        return id / 2;
        """
    )
    assert 2**16 - 256 <= opened <= 2**16 + 8192  # each is refused by two messages of 64 bytes
    assert "the server does not acknowledge the answers to what it sends" in stream.told


# What a server must not send

# Positions in the fixture of the test below: what the page has sent, and what is acknowledged.
SENT, ACKNOWLEDGED = 20, 13


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(b"", id="empty"),
        pytest.param(carried(b""), id="DATA without a message"),
        pytest.param(Hello(bytes(16)).encode(None), id="HELLO"),
        pytest.param(Welcome(EPOCH, SENT, GRACE).encode(), id="WELCOME"),
        pytest.param(b"\x03gone", id="LOST"),
        pytest.param(b"\x04no", id="REFUSED"),
        pytest.param(b"\x07\x00", id="an unknown type"),
        pytest.param(acknowledgement(SENT, 7), id="a short ACK"),
        pytest.param(acknowledgement(SENT, 9), id="a long ACK"),
        pytest.param(acknowledgement(SENT + 1), id="an ACK of more than was sent"),
        pytest.param(acknowledgement(2**64 - 1), id="an ACK of the largest number"),
        pytest.param(acknowledgement(ACKNOWLEDGED - 7), id="an ACK that goes back"),
        pytest.param(acknowledgement(ACKNOWLEDGED + 1), id="an ACK within a message"),
        pytest.param(b"\x06", id="END without a code"),
        pytest.param(b"\x06\x03", id="END with half a code"),
    ],
)
def test_a_message_that_no_server_may_send_loses_the_session(stream: Session, wrong: bytes) -> None:
    stream.write("12345")
    stream.take_sent()
    stream.page.take(acknowledgement(stream.received))
    stream.write("12345")
    stream.take_sent()
    assert (stream.received, ACKNOWLEDGED) == (SENT, SENT - 7)
    stream.page.take(wrong)
    expected = "the server ended the connection: 1006, the session is lost: the server s"
    assert stream.told.startswith(expected)
    assert not stream.elapse(GRACE * 1000)


def test_nothing_but_acknowledgements_comes_behind_the_end(stream: Session) -> None:
    stream.page.take(end(1000))
    stream.page.take(carried(message(0, CLOSE, READ)))
    assert "the server sent a message of type 0 and 4 bytes behind its END" in stream.told


def test_a_text_loses_the_session(stream: Session) -> None:
    stream.page.run("socket.onmessage({ data: 'text' })")
    assert "the server sent a message without a type on a resumable connection" in stream.told


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("'text'", id="a text"),
        pytest.param("new ArrayBuffer(0)", id="empty"),
        pytest.param("Uint8Array.of(2, ...Array(56).fill(0)).buffer", id="no epoch"),
        pytest.param("Uint8Array.of(2, ...Array(55).fill(1)).buffer", id="short"),
    ],
)
def test_an_answer_to_hello_that_is_none_loses_the_session(session: Session, answer: str) -> None:
    session.page.run("socket.onopen()")
    session.page.run(f"socket.onmessage({{ data: {answer} }})")
    assert "the server does not answer as one that resumes connections" in session.told
    assert not session.elapse(GRACE * 1000)


# What fails in the page itself

FAILING = "() => Promise.reject(new Error('no keys today'))"


def test_a_hello_that_cannot_be_signed_fails_one_attempt(stream: Session) -> None:
    stream.lose()
    assert stream.elapse(50)
    stream.page.run(f"globalThis.before = crypto.subtle.sign; crypto.subtle.sign = {FAILING};")
    stream.page.run("socket.onopen()")
    assert stream.elapse(100)
    stream.page.run("crypto.subtle.sign = before")
    stream.attach()
    stream.write("on")
    assert stream.take_sent() == [carried(message(0, DATA, b"on"))]


def test_a_key_that_cannot_be_used_is_told_at_once(session: Session) -> None:
    session.page.run(f"crypto.subtle.importKey = {FAILING}")
    session.attach()
    assert "1006, Error: no keys today" in session.told


def test_what_comes_with_the_answer_is_counted_though_some_of_it_fails(session: Session) -> None:
    session.page.run(
        """
        process.on("uncaughtException", ({ message }) => { globalThis.uncaught = message; });
        crypto.subtle.importKey = () => new Promise((done) => { globalThis.imported = done; });
        """
    )
    session.attach()
    arriving = [message(1, ACK, WINDOW), message(3, ACK, WINDOW), message(3, DATA, b"whole")]
    for each in (*arriving, message(3, CLOSE, READ)):
        session.page.take(carried(each))
    session.page.run(
        """
        const real = DataView.prototype.getUint32;  // the next two are for WELCOME
        let calls = 0;
        DataView.prototype.getUint32 = function (...where) {
          if (++calls === 3) throw new Error("a defect");
          return real.apply(this, where);
        };
        imported();
        """
    )
    script = (
        "const { value } = await mux.incomingBidirectionalStreams.getReader().read();"
        "return [value.id, await new Response(value.readable).text(), uncaught];"
    )
    assert session.page.run(script) == [3, "whole", "a defect"]
    session.lose()
    assert session.elapse(50)
    assert session.attach().received == sum(map(len, (*arriving, message(3, CLOSE, READ))))
