"""Links: messages both ways, room, pings, bad frames, and every way to end."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import threading

import pytest

from wsmux.bus.session.link import Link, dial
from wsmux.bus.wire.envelope import MAX_ENVELOPE
from wsmux.exceptions import CloseCode, ConnectionClosed, ForkedError, HandshakeError
from wsmux.protocols.base import Role
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.links import Running, link_and_peer, pair
from ...helpers.raw_peer import (
    BINARY,
    CLOSE_FRAME,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    WAIT,
    RawPeer,
    close_payload,
    in_thread,
    read_head,
    response,
    wait_for,
)
from ...helpers.tables import each_case

ROLES = (Role.CLIENT, Role.SERVER)


def fill(link: Link) -> int:
    """Send until there is no room; return the last ticket."""
    last = 0
    while ticket := link.send_nowait(bytes(64 * 1024)):
        last = ticket
    return last


def test_messages_arrive_in_order_both_ways() -> None:
    with pair() as (client, relay):
        sent = [os.urandom(size) for size in (0, 1, 125, 126, 70_000)]
        for sender, receiver in ((client, relay), (relay, client)):
            for data in sent:
                sender.send(data)
            assert [receiver.next() for _ in sent] == sent


def test_a_message_of_the_largest_size_arrives() -> None:
    with pair() as (client, relay):
        client.send(bytes(MAX_ENVELOPE))
        data = relay.next()
        assert data is not None
        assert len(data) == MAX_ENVELOPE


@pytest.mark.parametrize(
    "send", [Link.send_nowait, lambda link, data: link.send(data, Deadline(0))]
)
def test_a_message_above_the_limit_is_not_sent(send: object) -> None:
    with pair(max_message=1000) as (client, _):
        with pytest.raises(ValueError, match="1001 bytes is above the limit of 1000"):
            send(client.link, bytes(1001))  # type: ignore[operator]
        assert client.link.error is None


def test_several_threads_may_send() -> None:
    with pair() as (client, relay):
        futures = [in_thread(client.send, bytes((n,)) * 100) for n in range(32)]
        for future in futures:
            future.result(WAIT)
        assert {relay.next() for _ in futures} == {bytes((n,)) * 100 for n in range(32)}


# Room


@pytest.mark.parametrize("role", ROLES)
def test_there_is_no_room_for_a_peer_that_does_not_read(role: Role) -> None:
    with link_and_peer(role) as (running, _):
        assert fill(running.link) > 0
        assert running.link.send_nowait(b"more") == 0
        assert running.link.error is None


def test_send_raises_when_there_is_no_room_in_time() -> None:
    with link_and_peer(Role.SERVER) as (running, _):
        fill(running.link)
        with pytest.raises(
            TimeoutError, match="the send queue of .* stayed full; nothing was sent"
        ):
            running.link.send(b"more", Deadline(0.01))


def test_send_goes_on_when_the_peer_reads() -> None:
    with link_and_peer(Role.SERVER) as (running, peer):
        last = fill(running.link)
        sending = in_thread(running.link.send, b"more", Deadline(WAIT))
        for _ in range(last):
            peer.recv_message()
        sending.result(WAIT)
        assert peer.recv_message() == b"more"


def test_a_thread_that_waits_for_room_hears_of_the_end() -> None:
    with link_and_peer(Role.SERVER) as (running, _):
        fill(running.link)
        sending = in_thread(running.link.send, b"more", Deadline(WAIT))
        wait_for(lambda: running.link._channel.queue.has_waiting_writers(), "a waiting writer")
        running.link.abort()
        with pytest.raises(ConnectionClosed, match="aborted"):
            sending.result(WAIT)


def test_sent_tells_what_the_socket_took() -> None:
    with link_and_peer(Role.SERVER) as (running, peer):
        assert running.link.send_nowait(b"small") == 1
        assert running.link.sent == 1
        last = fill(running.link)
        assert running.link.sent < last
        for _ in range(last):
            peer.recv_message()
        wait_for(lambda: running.link.sent == last, "the last ticket")


def test_ask_room_brings_a_batch_when_there_is_room() -> None:
    ours, theirs = socket.socketpair()
    link = Link(ours, Role.SERVER)
    with RawPeer(theirs, masks=True) as peer:
        last = fill(link)
        link.ask_room()

        def read() -> bytes:
            for _ in range(last):
                peer.recv_message()
            data = peer.recv_message()
            peer.send_frame(CLOSE_FRAME, close_payload(1000))
            return data

        reading = in_thread(read)
        sent = 0
        for _ in link.batches():
            sent = sent or link.send_nowait(b"again")
        assert reading.result(WAIT) == b"again"
        assert sent == last + 1


def test_wake_brings_an_empty_batch() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        link = Link(ours, Role.SERVER)
        batches = link.batches()
        link.wake()
        assert next(batches) == []
        batches.close()


def test_the_timer_brings_an_empty_batch() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        link = Link(ours, Role.SERVER)
        link.set_timer(link.now)
        batches = link.batches()
        assert next(batches) == []
        batches.close()


# Pings


def test_a_client_pings_a_silent_relay() -> None:
    with link_and_peer(Role.CLIENT, ping_interval=0.01) as (_, peer):
        assert peer.recv_frame().opcode == PING


def test_a_client_gives_up_a_relay_that_does_not_answer() -> None:
    with link_and_peer(Role.CLIENT, ping_interval=0.01, ping_timeout=0.01) as (running, peer):
        code, reason = peer.recv_close()
        assert code == 1011
        assert "no byte from the peer" in reason
        assert running.next() is None


def test_a_relay_answers_pings_and_sends_none() -> None:
    with link_and_peer(Role.SERVER, ping_interval=0.01, ping_timeout=0.01) as (running, peer):
        peer.send_frame(PING, b"hello")
        assert peer.recv_frame() == (PONG, b"hello", True)
        running.send(b"first")
        assert peer.recv_frame().opcode == BINARY


# Bad frames

BAD_FRAMES = {
    "text": (1003, "text message", [(TEXT, b"hello", {})]),
    "fragmented text": (1003, "text", [(TEXT, b"he", {"fin": False}), (CONTINUATION, b"llo", {})]),
    "text that is not UTF-8": (1007, "not UTF-8", [(TEXT, b"\xff", {})]),
    "too long": (1009, "above the limit of 1000", [(BINARY, b"", {"declared": 1001})]),
    "too long in fragments": (
        1009,
        "above the limit",
        [(BINARY, bytes(900), {"fin": False}), (CONTINUATION, bytes(101), {})],
    ),
    "reserved bit": (1002, "reserved bit", [(BINARY, b"x", {"reserved": 4})]),
    "reserved opcode": (1002, "opcode 3", [(3, b"x", {})]),
    "reserved control opcode": (1002, "opcode 11", [(11, b"x", {})]),
    "wrongly masked": (1002, "mask", [(BINARY, b"x", {"masked": None})]),
    "continuation of nothing": (1002, "continuation", [(CONTINUATION, b"x", {})]),
    "new message within another": (
        1002,
        "before the last fragment",
        [(BINARY, b"x", {"fin": False}), (BINARY, b"y", {})],
    ),
    "length not in its shortest form": (1002, "shortest form", [(BINARY, b"x", {"width": 2})]),
    "fragmented ping": (1002, "fragmented control", [(PING, b"x", {"fin": False})]),
    "long ping": (1002, "125 bytes", [(PING, bytes(126), {})]),
    "half a close code": (1002, "half a code", [(CLOSE_FRAME, b"\x03", {})]),
    "close code that must not be sent": (1002, "1005", [(CLOSE_FRAME, close_payload(1005), {})]),
    "close reason that is not UTF-8": (
        1007,
        "not UTF-8",
        [(CLOSE_FRAME, close_payload(1000, b"\xff"), {})],
    ),
}


@each_case
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("code", "text", "frames"), BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_a_bad_frame_ends_the_link_with_a_code_and_a_sentence(
    role: Role, code: int, text: str, frames: list[tuple[int, bytes, dict[str, object]]]
) -> None:
    with link_and_peer(role, max_message=1000) as (running, peer):
        peer.send_frame(BINARY, b"good")
        for opcode, payload, how in frames:
            if "masked" in how:
                how = {"masked": not peer.masks}
            peer.send_frame(opcode, payload, **how)
        assert running.next() == b"good"
        closed, reason = peer.recv_close()
        assert (closed, text in reason) == (code, True), reason
        peer.sock.shutdown(socket.SHUT_WR)  # or the link would read what comes for a second more
        assert running.next() is None
        assert isinstance(running.link.error, ConnectionClosed)
        assert running.link.error.code == code


def test_nothing_behind_a_text_message_counts() -> None:
    with link_and_peer(Role.SERVER) as (running, peer):
        peer.send(peer.frame(TEXT, b"bad") + peer.frame(BINARY, b"behind"))
        assert running.next() is None


# Ends


def test_close_sends_what_is_queued_first() -> None:
    with pair() as (client, relay):
        client.send(b"last")
        client.link.close(CloseCode.NORMAL_CLOSURE, "done", Deadline(WAIT))
        assert relay.next() == b"last"
        assert relay.next() is None
        assert isinstance(relay.link.error, ConnectionClosed)
        assert (relay.link.error.code, relay.link.error.reason) == (
            CloseCode.NORMAL_CLOSURE,
            "done",
        )


def test_hang_up_returns_at_once_from_the_io_thread() -> None:
    ours, theirs = socket.socketpair()
    link, peer = Link(ours, Role.SERVER), RawPeer(theirs, masks=True)
    with peer:
        peer.send_frame(BINARY, b"hello")
        peer.send_frame(CLOSE_FRAME, close_payload(1000))
        for _ in link.messages():
            link.hang_up(1001, "enough")
        assert peer.recv_close() == (1001, "enough")


@pytest.mark.parametrize("drain", [True, False])
def test_what_comes_before_the_close_of_the_peer_is_drained_on_demand(drain: bool) -> None:
    with link_and_peer(Role.SERVER) as (running, peer):
        running.link.hang_up(1001, "away", drain=drain)
        assert peer.recv_close() == (1001, "away")
        peer.send_frame(BINARY, b"crossed")
        peer.send_frame(CLOSE_FRAME, close_payload(1001))
        assert running.next() == (b"crossed" if drain else None)


def test_fail_drops_what_is_queued() -> None:
    with link_and_peer(Role.SERVER) as (running, _):
        last = fill(running.link)
        running.link.fail(CloseCode.TRY_AGAIN_LATER, "too slow")
        assert running.next() is None
        assert running.link.sent < last
        assert isinstance(running.link.error, ConnectionClosed)
        assert (running.link.error.code, running.link.error.reason) == (
            CloseCode.TRY_AGAIN_LATER,
            "too slow",
        )


def test_the_first_cause_stays() -> None:
    with link_and_peer(Role.SERVER) as (running, _):
        running.link.fail(1007, "first")
        running.link.fail(1013, "second")
        running.link.hang_up()
        assert running.next() is None
        assert isinstance(running.link.error, ConnectionClosed)
        assert running.link.error.code == 1007


def test_an_end_of_file_is_no_clean_end() -> None:
    with link_and_peer(Role.SERVER) as (running, peer):
        peer.sock.shutdown(socket.SHUT_WR)
        assert running.next() is None
        assert isinstance(running.link.error, ConnectionClosed)
        assert running.link.error.code == 1006


def test_sending_on_an_ended_link_raises_what_ended_it() -> None:
    with link_and_peer(Role.SERVER) as (running, peer):
        peer.send_frame(CLOSE_FRAME, close_payload(1001, b"bye"))
        assert running.next() is None
        with pytest.raises(ConnectionClosed, match="by the peer with code 1001") as caught:
            running.link.send_nowait(b"late")
        assert pickle.loads(pickle.dumps(caught.value)).code == 1001
        with pytest.raises(ConnectionClosed):
            running.link.send(b"late", Deadline(WAIT))


def test_closing_the_generator_cuts_the_link() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        link = Link(ours, Role.SERVER)
        batches = link.batches()
        link.wake()
        next(batches)
        batches.close()
        assert link.wait_finished(Deadline(0))
        assert theirs.recv(1) == b""


def test_a_forked_child_cannot_send_and_the_parent_can() -> None:
    with pair() as (client, relay):
        pid = os.fork()
        if not pid:
            try:
                client.link.send_nowait(b"child")
            except ForkedError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        client.send(b"parent")
        assert relay.next() == b"parent"


# Dialling

TOKEN = "eyJh.bGci.OiJS"


class Listener:
    """Answer one upgrade by hand."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.line = ""
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.settimeout(WAIT)
        self.url = f"ws://127.0.0.1:{self.socket.getsockname()[1]}"
        self.serving = in_thread(self._serve)

    def _serve(self) -> socket.socket:
        sock, _ = self.socket.accept()
        sock.settimeout(WAIT)
        self.line, headers = read_head(sock)
        plain = {"Sec-WebSocket-Protocol": None}
        sock.sendall(self.answer or response(headers["sec-websocket-key"], plain))
        return sock

    def close(self) -> None:
        self.serving.result(WAIT).close()
        self.socket.close()


@pytest.mark.parametrize(
    ("path", "line"), [("", f"/?{TOKEN}"), ("/any/path", f"/any/path?{TOKEN}")]
)
def test_the_whole_query_is_the_token(path: str, line: str) -> None:
    listener = Listener(None)
    link = dial(listener.url + path, lambda: TOKEN, Deadline(WAIT))
    with Running(link) as running:
        sock = listener.serving.result(WAIT)
        with RawPeer(sock, masks=False) as peer:
            running.send(b"hello")
            assert peer.recv_message() == b"hello"
    assert listener.line == f"GET {line} HTTP/1.1"
    listener.close()


def test_a_refusal_tells_status_and_text_without_the_token() -> None:
    body = f"the token {TOKEN} has expired at noon".encode()
    head = f"HTTP/1.1 401 Unauthorized\r\nContent-Length: {len(body)}\r\n\r\n"
    listener = Listener(head.encode() + body)
    with pytest.raises(HandshakeError, match=": the token ... has expired at") as caught:
        dial(listener.url, lambda: TOKEN, Deadline(WAIT))
    assert caught.value.status == 401
    assert TOKEN not in str(caught.value)
    assert caught.value.__cause__ is None
    listener.close()


def test_a_relay_that_does_not_answer_is_given_up_without_showing_the_token() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TimeoutError, match="no answer") as caught:
            dial(url, lambda: TOKEN, Deadline(0.05))
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["http://relay.test", "relay.test", "ws://", "ws://relay.test/?a=b", "ws://relay.test/#a"],
)
def test_an_address_that_cannot_carry_a_token_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="ws:// or wss:// URL|no query and no fragment"):
        dial(url, lambda: TOKEN, Deadline(WAIT))


def test_nobody_there_is_an_os_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ConnectionRefusedError, match=f"cannot connect to {url}: ") as caught:
            dial(url, lambda: TOKEN, Deadline(WAIT))
    assert caught.value.errno == errno.ECONNREFUSED
    assert TOKEN not in str(caught.value)


def test_links_leave_no_threads() -> None:
    before = threading.active_count()
    with pair() as (client, relay):
        client.send(b"x")
        assert relay.next() == b"x"
    assert threading.active_count() == before
