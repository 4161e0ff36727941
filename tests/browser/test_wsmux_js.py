"""Have a page in a real Chromium hold streams with a real Flask application."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from flask import Flask

import wsmux
from wsmux.flask import Mux

from ..helpers.browser.chromium import Page
from ..helpers.inside import record_of
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for, wait_for_writer

pytestmark = [pytest.mark.tools, pytest.mark.hang_bound(180.0)]

KIB = 1024
MIB = 1024 * KIB

# A connection to the route, which stays with the page.
OPEN = "globalThis.mux = new Wsmux('/mux', {}); await mux.ready;"


@functools.cache
def block(seed: int) -> bytes:
    """Return what a pattern repeats."""
    return bytes((i * 7 + (i >> 8) + seed) & 255 for i in range(64 * KIB))


def pattern(size: int, seed: int = 0) -> bytes:
    """Return what the page's function of this name does."""
    return (block(seed) * (size // (64 * KIB) + 1))[:size]


class Route:
    """Hand the connection of a page's ``/mux`` to the thread of the test, and keep it open."""

    def __init__(self, app: Flask, **options: Any) -> None:
        self._came: SimpleQueue[wsmux.Connection] = SimpleQueue()
        self._done = threading.Event()
        self._mux = Mux(app, **options)
        self._mux.route("/mux")(self._keep)

    def _keep(self, connection: wsmux.Connection) -> None:
        self._came.put(connection)
        self._done.wait()

    def connection(self) -> wsmux.Connection:
        return self._came.get(timeout=WAIT)

    def shut_down(self) -> None:
        self._mux.shutdown(0)

    def end(self) -> None:
        self._done.set()


@pytest.fixture
def route(app: Flask) -> Iterator[Route]:
    made = Route(app)
    yield made
    made.end()


@pytest.fixture
def joined(route: Route, page: Page) -> tuple[Page, wsmux.Connection]:
    """Return a page and the server's end of its connection, ``mux`` there."""
    page.run(OPEN)
    return page, route.connection()


Joined = tuple[Page, wsmux.Connection]


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, name="test-peer")
    thread.start()
    return thread


# Both ways


def test_a_stream_of_the_page_is_read_and_answered(joined: Joined) -> None:
    page, connection = joined
    page.run(
        "globalThis.stream = await mux.createBidirectionalStream(); await write(stream, 'hello');"
    )
    with connection.accept_stream(WAIT) as stream:
        assert stream.id == 0
        assert stream.readall() == b"hello"
        stream.write(b"good day")
    assert page.run("return [stream.id, await text(stream.readable)]") == [0, "good day"]
    wait_for(lambda: not connection.stats().streams)


def test_a_stream_of_the_server_is_taken_and_answered(joined: Joined) -> None:
    page, connection = joined
    page.run(
        """
        globalThis.answering = (async () => {
          for await (const stream of mux.incomingBidirectionalStreams) {
            await write(stream, (await text(stream.readable)).toUpperCase());
          }
        })();
        """
    )
    for word in (b"one", b"two"):
        with connection.open_stream(WAIT) as stream:
            stream.write(word)
            stream.close_write()
            assert stream.readall() == word.upper()
    assert page.run("mux.close(); return caught(answering)") == {"value": "undefined"}


def test_a_hundred_streams_at_once_are_not_mixed_up(page: Page) -> None:
    assert page.run(
        """
        const mux = new Wsmux("/echo");
        const trips = Array.from({ length: 100 }, async (_, i) => {
          const stream = await mux.createBidirectionalStream();
          const sent = pattern(3000 + 700 * i, i);
          const writing = write(stream, sent.slice(0, 1000), sent.slice(1000));
          const came = new Uint8Array(await new Response(stream.readable).arrayBuffer());
          await writing;
          return came.length === sent.length && came.every((byte, at) => byte === sent[at]);
        });
        return (await Promise.all(trips)).every(Boolean);
        """
    )


@pytest.fixture
def roomy(app: Flask) -> None:
    """Serve ``/roomy``: a stream may send much, and is told how many bytes came."""

    def count(stream: wsmux.Stream) -> None:
        stream.write(str(len(stream.readall())).encode())

    config = wsmux.Config(receive_window=6 * MIB, max_connection_buffer=64 * MIB)
    Mux(app, config=config).stream_route("/roomy")(count)


@pytest.fixture
def few(app: Flask) -> None:
    """Serve ``/few``, where no more than two streams may be open."""
    Mux(app, config=wsmux.Config(max_streams=2)).stream_route("/few")(wsmux.Stream.readall)


@pytest.fixture(autouse=True)
def echo(app: Flask) -> None:
    """Serve ``/echo``: what comes on a stream goes back on it."""

    def back(stream: wsmux.Stream) -> None:
        while data := stream.read(64 * KIB):
            stream.write(data)

    Mux(app).stream_route("/echo")(back)


def test_bulk_both_ways_at_once_is_whole(joined: Joined) -> None:
    page, connection = joined
    page.run(
        """
        globalThis.digest = async (bytes) => {
          const made = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
          return Array.from(made, (byte) => byte.toString(16).padStart(2, "0")).join("");
        };
        globalThis.stream = await mux.createBidirectionalStream();
        globalThis.all = pattern(8 * 1024 * 1024);
        globalThis.writing = write(stream, all.subarray(0, 5_000_001), all.subarray(5_000_001));
        globalThis.reading = new Response(stream.readable).arrayBuffer();
        """
    )
    sent = hashlib.sha256(pattern(256 * KIB) * 40).hexdigest()
    came = hashlib.sha256()
    with connection.accept_stream(WAIT) as stream:

        def write() -> None:
            for _ in range(40):
                stream.write(pattern(256 * KIB))
            stream.close_write()

        thread = in_thread(write)
        while data := stream.read(64 * KIB):
            came.update(data)
        thread.join()
    assert page.run("return digest(all)") == came.hexdigest()
    assert page.run("await writing; return digest(await reading)") == sent


def test_a_reader_may_bring_its_own_buffer(joined: Joined) -> None:
    page, connection = joined
    page.run("globalThis.stream = await mux.createBidirectionalStream();")
    with connection.accept_stream(WAIT) as stream:
        stream.write(b"0123456789")
    read = page.run(
        """
        const reader = stream.readable.getReader({ mode: "byob" }), sizes = [];
        let all = "";
        for (;;) {
          const { value, done } = await reader.read(new Uint8Array(4));
          if (done) return [all, sizes];
          sizes.push(value.length);
          all += new TextDecoder().decode(value);
        }
        """
    )
    assert read == ["0123456789", [4, 4, 2]]


# Credit


def test_a_page_that_does_not_read_holds_the_writer(joined: Joined) -> None:
    page, connection = joined
    page.run("globalThis.stream = await mux.createBidirectionalStream();")
    with connection.accept_stream(WAIT) as stream:
        thread = in_thread(lambda: (stream.write(pattern(MIB)), stream.close_write()))
        wait_for_writer(connection)
        assert connection.stats().bytes_sent < 300 * KIB
        size = page.run("return (await new Response(stream.readable).arrayBuffer()).byteLength")
        thread.join()
    assert size == MIB


def test_a_server_that_does_not_read_holds_the_page(joined: Joined) -> None:
    page, connection = joined
    page.run(
        """
        globalThis.stream = await mux.createBidirectionalStream();
        globalThis.done = false;
        globalThis.writing = write(stream, pattern(1024 * 1024)).then(() => { done = true; });
        """
    )
    with connection.accept_stream(WAIT) as stream:
        wait_for(lambda: record_of(stream).buffer.size == 256 * KIB)
        assert page.run("return [done, stream.writable.locked]") == [False, True]
        assert stream.readall() == pattern(MIB)
    assert page.run("await writing; return done") is True


def test_much_credit_does_not_fill_the_browser(roomy: None, page: Page) -> None:
    size, most = page.run(
        """
        globalThis.WebSocket = class extends WebSocket {
          constructor(...given) { super(...given); globalThis.socket = this; }
        };
        const mux = new Wsmux("/roomy"), streams = [], amounts = [];
        for (let i = 0; i < 4; i++) streams.push(await mux.createBidirectionalStream());
        const send = socket.send.bind(socket);
        socket.send = (message) => { send(message); amounts.push(socket.bufferedAmount); };
        await Promise.all(streams.map((stream) => write(stream, pattern(6 * 1024 * 1024))));
        const counts = await Promise.all(streams.map((stream) => text(stream.readable)));
        return [counts.reduce((sum, count) => sum + Number(count), 0), Math.max(...amounts)];
        """
    )
    assert size == 24 * MIB
    assert MIB < most < 2 * MIB


# Early bytes: the server writes before the page has taken the stream

# What the page does at any time after that.
LATER = "await new Promise((done) => setTimeout(done, 500));"
TAKE = "const { value: stream } = await mux.incomingBidirectionalStreams.getReader().read();"


@pytest.fixture
def heard(joined: Joined) -> Joined:
    """Have the server know of a window of the page's, without which nothing is early."""
    page, connection = joined
    page.run("await (await mux.createBidirectionalStream()).writable.close();")
    connection.accept_stream(WAIT).close()
    return joined


@pytest.mark.parametrize(
    "text", ["return text(stream.readable)", "return new Response(stream.readable).text()"]
)
def test_a_page_that_is_late_reads_all(heard: Joined, text: str) -> None:
    page, connection = heard
    with connection.open_stream(WAIT) as stream:
        stream.write(b"late")
        stream.close_write()
        assert page.run(f"{LATER} {TAKE} {text}") == "late"


def test_a_page_that_is_late_reads_more_than_what_was_early(heard: Joined) -> None:
    page, connection = heard
    with connection.open_stream(WAIT) as stream:
        thread = in_thread(lambda: (stream.write(pattern(MIB)), stream.close_write()))
        wait_for_writer(connection)
        size = page.run(
            f"{TAKE} return (await new Response(stream.readable).arrayBuffer()).byteLength"
        )
        thread.join()
    assert size == MIB


def test_a_page_that_is_late_reads_what_was_closed_at_once(heard: Joined) -> None:
    page, connection = heard
    for word in (b"one", b"two"):
        with connection.open_stream(WAIT) as stream:
            stream.write(word)
    wait_for(lambda: not connection.stats().streams)
    told = page.run(
        """
        const streams = mux.incomingBidirectionalStreams.getReader(), words = [];
        for (let i = 0; i < 2; i++) {
          words.push(await new Response((await streams.read()).value.readable).text());
        }
        return words;
        """
    )
    assert told == ["one", "two"]


def test_a_page_that_takes_no_stream_holds_16_kib_of_each(heard: Joined) -> None:
    page, connection = heard
    streams = [connection.open_stream(WAIT) for _ in range(8)]
    threads = [in_thread(lambda each=each: write_on(each)) for each in streams]  # type: ignore[misc]
    wait_for_writer(connection, 8)
    assert [record_of(stream).sent for stream in streams] == [16 * KIB] * 8
    page.run("await mux.incomingBidirectionalStreams.cancel()")
    for thread in threads:
        thread.join()


def test_a_page_that_takes_a_stream_and_never_reads_holds_a_window(heard: Joined) -> None:
    page, connection = heard
    stream = connection.open_stream(WAIT)
    thread = in_thread(lambda: write_on(stream))
    page.run(f"{TAKE} globalThis.stream = stream;")
    wait_for(lambda: record_of(stream).sent == 256 * KIB)
    wait_for_writer(connection)
    assert record_of(stream).sent == 256 * KIB
    page.run("await stream.readable.cancel()")
    thread.join()


def write_on(stream: wsmux.Stream) -> None:
    """Write until the page ends that."""
    with pytest.raises(wsmux.StreamError):
        stream.write(pattern(MIB))
    stream.close()


def test_early_bytes_of_a_stream_that_the_page_refuses_harm_nobody(
    route: Route, page: Page
) -> None:
    page.run("globalThis.mux = new Wsmux('/mux', { openTimeout: 50 }); await mux.ready;")
    connection = route.connection()
    page.run("await (await mux.createBidirectionalStream()).writable.close();")
    connection.accept_stream(WAIT).close()
    write_on(connection.open_stream(WAIT))
    page.run("globalThis.stream = await mux.createBidirectionalStream();")
    connection.accept_stream(WAIT).close()


def test_early_bytes_of_a_page_wait_for_a_late_server(heard: Joined) -> None:
    page, connection = heard
    connection.open_stream(WAIT).close()
    page.run(
        """
        globalThis.late = await mux.createBidirectionalStream();
        globalThis.never = await mux.createBidirectionalStream();
        await write(late, pattern(16 * 1024));
        await write(never, pattern(16 * 1024));
        """
    )
    page.run(LATER)
    with connection.accept_stream(WAIT) as stream:
        assert stream.readall() == pattern(16 * KIB)
    connection.go_away()
    page.run("await mux.draining; return text(late.readable)")


# Ends


def test_an_abort_of_the_page_has_its_code(joined: Joined) -> None:
    page, connection = joined
    page.run(
        """
        globalThis.stream = await mux.createBidirectionalStream();
        const writer = stream.writable.getWriter();
        globalThis.writing = caught(writer.write(pattern(1024 * 1024)));
        globalThis.writer = writer;
        """
    )
    with connection.accept_stream(WAIT) as stream:
        wait_for(lambda: record_of(stream).buffer.size == 256 * KIB)
        page.run("await writer.abort(new WsmuxError('enough', { streamErrorCode: 70 }));")
        with pytest.raises(wsmux.StreamReset) as caught:
            stream.readall()
    assert caught.value.code == 70
    page.run("await writing; return text(stream.readable)")


NO_CODES = ("63", "-1n", "70.5", "2n ** 62n", "'70'")


@pytest.mark.parametrize(
    "reason",
    ["", "'a word'", *(f"new WsmuxError('', {{ streamErrorCode: {code} }})" for code in NO_CODES)],
)
def test_what_is_no_code_of_an_application_is_not_sent(joined: Joined, reason: str) -> None:
    page, connection = joined
    page.run("globalThis.stream = await mux.createBidirectionalStream();")
    with connection.accept_stream(WAIT) as stream:
        page.run(f"await stream.writable.abort({reason})")
        with pytest.raises(wsmux.StreamReset) as caught:
            stream.readall()
    assert caught.value.code == 0


@pytest.mark.parametrize("code", [71, 2**13, 2**29 + 1, 2**52 + 1, 2**62 - 1])
def test_a_reader_who_cancels_ends_the_writer(joined: Joined, code: int) -> None:
    page, connection = joined
    page.run("globalThis.stream = await mux.createBidirectionalStream();")
    with connection.accept_stream(WAIT) as stream:
        reason = f"new WsmuxError('', {{ streamErrorCode: {code}n }})"
        page.run(f"await stream.readable.cancel({reason})")
        with pytest.raises(wsmux.StreamReset) as caught:
            stream.write(pattern(MIB))
        assert caught.value.code == code


@pytest.mark.parametrize("code", [72, 2**13, 2**29 + 1, 2**52 + 1])
def test_a_reset_of_the_server_reaches_both_halves(joined: Joined, code: int) -> None:
    page, connection = joined
    page.run("globalThis.stream = await mux.createBidirectionalStream();")
    connection.accept_stream(WAIT).reset(code)
    told = {"name": "WsmuxError", "source": "stream", "code": code}
    told["message"] = f"the server reset the stream with the code {code}"
    assert page.run("return caught(text(stream.readable))") == told
    assert page.run("return caught(stream.writable.getWriter().closed)") == told


def test_a_server_that_reads_no_further_is_told(joined: Joined) -> None:
    page, connection = joined
    page.run("globalThis.stream = await mux.createBidirectionalStream();")
    stream = connection.accept_stream(WAIT)
    stream.close()
    told = page.run("return caught(stream.writable.getWriter().closed)")
    assert (told["message"], told["code"]) == ("the server reads no further", None)
    assert page.run("return text(stream.readable)") == ""


def test_what_is_no_bytes_is_refused_and_does_not_look_whole(joined: Joined) -> None:
    page, connection = joined
    page.run(
        """
        globalThis.writer = (await mux.createBidirectionalStream()).writable.getWriter();
        await writer.write(encode("half"));
        """
    )
    with connection.accept_stream(WAIT) as stream:
        assert stream.read(4) == b"half"
        told = page.run("return caught(writer.write('text'))")
        with pytest.raises(wsmux.StreamReset):
            stream.readall()
    assert told["name"] == "TypeError"
    assert "TextEncoder" in told["message"]


# Refusals


def test_a_stream_too_many_is_refused(few: None, page: Page) -> None:
    told = page.run(
        """
        const mux = new Wsmux("/few"), streams = [];
        for (let i = 0; i < 3; i++) streams.push(await mux.createBidirectionalStream());
        const told = await caught(text(streams[2].readable));
        mux.close();
        return told;
        """
    )
    assert (told["code"], told["source"]) == (3, "stream")
    assert "the stream was refused" in told["message"]


def test_a_stream_that_the_page_does_not_take_is_refused(route: Route, page: Page) -> None:
    page.run("globalThis.mux = new Wsmux('/mux', { openTimeout: 50 }); await mux.ready;")
    connection = route.connection()
    with connection.open_stream(WAIT) as stream, pytest.raises(wsmux.StreamRefused):
        stream.readall()
    page.run("await mux.incomingBidirectionalStreams.cancel()")
    with connection.open_stream(WAIT) as stream, pytest.raises(wsmux.StreamRefused):
        stream.readall()


@pytest.mark.parametrize("limit", ["maxStreams", "maxUnaccepted"])
def test_a_stream_of_the_server_too_many_is_refused(route: Route, page: Page, limit: str) -> None:
    page.run(f"globalThis.mux = new Wsmux('/mux', {{ {limit}: 2 }}); await mux.ready;")
    connection = route.connection()
    streams = [connection.open_stream(WAIT) for _ in range(3)]
    with pytest.raises(wsmux.StreamRefused):
        streams[2].readall()
    taken = page.run(
        """
        const reader = mux.incomingBidirectionalStreams.getReader();
        return [(await reader.read()).value.id, (await reader.read()).value.id];
        """
    )
    assert taken == [1, 3]
    for stream in streams:
        stream.reset()


@pytest.mark.parametrize("path", ["/", "/nowhere"])
def test_what_is_no_route_is_told(page: Page, path: str) -> None:
    told = page.run(
        f"const mux = new Wsmux('{path}'); caught(mux.closed); return caught(mux.ready)"
    )
    assert (told["name"], told["source"]) == ("WsmuxError", "session")
    assert f"{path} takes no connection of wsmux.v1: 1006" in told["message"]


def test_a_limit_that_cannot_be_is_refused(page: Page) -> None:
    for value in ("0", "-1", "2.5", "2 ** 32", "'x'", "NaN"):
        told = page.run(f"return caught((async () => new Wsmux('/', {{ maxStreams: {value} }}))())")
        assert told["name"] == "RangeError"
        assert "maxStreams must be a whole number" in told["message"]


# The end of the connection


def test_a_page_closes_with_its_own_code(joined: Joined) -> None:
    page, connection = joined
    told = page.run(
        """
        const stream = await mux.createBidirectionalStream();
        const reading = caught(text(stream.readable));
        mux.close({ closeCode: 4321, reason: "lunch" });
        return [await mux.closed, await reading, await caught(mux.createBidirectionalStream())];
        """
    )
    assert told[0] == {"closeCode": 4321, "reason": "lunch"}
    assert told[1]["message"] == told[2]["message"] == "the connection was closed here"
    assert connection.wait_closed(WAIT)
    assert "4321" in str(connection.explain()[0])
    assert "lunch" in str(connection.explain()[0])


def test_a_code_that_a_page_may_not_give_changes_nothing(joined: Joined) -> None:
    page, connection = joined
    told = page.run("return caught((async () => mux.close({ closeCode: 1001 }))())")
    assert told["name"] == "InvalidAccessError"
    page.run("globalThis.stream = await mux.createBidirectionalStream();")
    connection.accept_stream(WAIT).close()


def test_a_server_that_stops_says_so_first(joined: Joined, route: Route) -> None:
    page, connection = joined
    page.run("globalThis.stream = await mux.createBidirectionalStream();")
    stream = connection.accept_stream(WAIT)
    connection.go_away()
    page.run("await mux.draining")
    told = page.run("return caught(mux.createBidirectionalStream())")
    assert "going away" in told["message"]
    stream.write(b"the last of it")
    stream.close()
    assert page.run("return text(stream.readable)") == "the last of it"
    route.shut_down()
    assert page.run("return mux.closed")["closeCode"] in (1000, 1001)


def test_a_lost_connection_fails_what_is_open_and_keeps_what_is_whole(joined: Joined) -> None:
    page, connection = joined
    page.run(
        """
        globalThis.whole = await mux.createBidirectionalStream();
        globalThis.half = await mux.createBidirectionalStream();
        """
    )
    whole, half = connection.accept_stream(WAIT), connection.accept_stream(WAIT)
    half.write(b"half")
    whole.write(b"whole")
    whole.close()
    page.run(
        """
        const reader = half.readable.getReader();
        await reader.read();
        globalThis.reading = caught(reader.read());
        """
    )
    connection.abort()
    told = page.run("return [await caught(mux.closed), await reading, await text(whole.readable)]")
    assert told[0]["source"] == told[1]["source"] == "session"
    assert "the server ended the connection: 1006" in told[0]["message"]
    assert told[2] == "whole"
