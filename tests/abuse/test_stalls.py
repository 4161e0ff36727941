"""Peers that stand still: who takes nothing, who dribbles, who leaves streams half open."""

from __future__ import annotations

import resource
import socket
import time
from pathlib import Path

import pytest

import wsmux

from ..helpers import raw_peer
from ..helpers.attacks import CREDIT, WAIT, attacked, bymux, native, opening_of, yamux
from ..helpers.raw_peer import ACK, BINARY, CONTINUATION, DATA, message, uint32
from ..helpers.wires import NAMES

pytestmark = pytest.mark.hang_bound(120.0)

MIB = 1024 * 1024
SOON = 0.4

# As much credit on the stream that ``opening_of`` opens first as the wire can give at once.
CREDITS = {
    "wsmux": native(0, ACK, uint32(2**32 - 10)),
    "js-ws": native(0, ACK, uint32(2**32 - 10), width=2),
    "yamux": yamux(1, 0, 1, 2**32 - 1 - 256 * 1024),
    "bymux": bymux(CREDIT, 0, 2**32),
}


def memory() -> int:
    """Return the bytes that this process holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# Who takes nothing


@pytest.mark.parametrize("protocol", NAMES)
def test_a_peer_that_takes_nothing_loses_the_connection(protocol: str) -> None:
    with attacked(protocol, wsmux.Config(stall_timeout=SOON)) as victim:
        victim.sock.sendall(opening_of(protocol, 0) + CREDITS[protocol])
        stream = victim.connection.accept_stream(timeout=WAIT)
        stream.timeout = WAIT
        data, before = bytes(10 * MIB), memory()
        with pytest.raises(wsmux.ConnectionClosedError, match="accepted no bytes for Config.stall"):
            stream.write(data)
        victim.check_end("the peer accepted no bytes for Config.stall_timeout = 0.4 s")
        assert victim.connection.stats().queued_bytes <= victim.connection.config.max_send_queue
        # What is queued refers to the bytes that were written, and is bounded.
        assert memory() - before <= 2 * MIB


def test_what_the_io_thread_cannot_send_is_timed_as_well() -> None:
    with attacked("wsmux", wsmux.Config(stall_timeout=SOON)) as victim:
        victim.sock.sendall(native(0, ACK, uint32(2**32 - 1)))
        stream = victim.connection.accept_stream(timeout=WAIT)
        stream.timeout = 0.01
        with pytest.raises(wsmux.WriteTimeout):
            stream.write(bytes(10 * MIB))
        victim.check_end("accepted no bytes")


def test_a_connection_with_nothing_to_send_is_left_alone() -> None:
    with attacked("wsmux", wsmux.Config(stall_timeout=0.05)) as victim:
        victim.sock.sendall(native(0, ACK, uint32(5)))
        stream = victim.connection.accept_stream(timeout=WAIT)
        stream.timeout = WAIT
        blocked = raw_peer.in_thread(stream.write, b"more than five bytes")
        raw_peer.wait_for(lambda: victim.connection.stats().waiting_writers == 1)
        with pytest.raises(TimeoutError):  # credit is the stream's affair; a stream may wait
            victim.connection.accept_stream(timeout=0.3)
        victim.sock.sendall(native(0, ACK, uint32(50)))
        assert blocked.result(WAIT) == 20
        assert victim.connection.error is None


@pytest.mark.long
def test_a_peer_that_takes_little_keeps_the_connection() -> None:
    with attacked("wsmux", wsmux.Config(stall_timeout=2.0)) as victim:
        victim.sock.sendall(native(0, ACK, uint32(2**32 - 1)))
        stream = victim.connection.accept_stream(timeout=WAIT)
        writing = raw_peer.in_thread(stream.write, bytes(10 * MIB))
        began = time.monotonic()
        while time.monotonic() < began + 10.0:
            assert victim.sock.recv(4096)
            time.sleep(0.1)
        assert victim.connection.error is None
        victim.drain()
        assert writing.result(WAIT) == 10 * MIB


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_tcp_gives_up_a_silent_path_in_time(family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"no such address here: {error}")
    with listener:
        ours = socket.create_connection(listener.getsockname()[:2])
        with listener.accept()[0]:
            connection = wsmux.from_socket(ours, role="client", protocol="yamux")
            options = {
                name: ours.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
                for name in ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
                if hasattr(socket, name)
            }
            kept = ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            connection.abort()
            assert connection.wait_closed(WAIT)
    expected = {
        "TCP_USER_TIMEOUT": 30_000,
        "TCP_KEEPIDLE": 15,
        "TCP_KEEPINTVL": 5,
        "TCP_KEEPCNT": 3,
    }
    assert kept == 1
    assert options.items() <= expected.items()
    assert options


@pytest.mark.parametrize("timeout", [None, 1e9])
def test_any_time_to_give_up_is_taken(timeout: float | None) -> None:
    config = wsmux.Config(tcp_user_timeout=timeout)
    with raw_peer.meet("server", config) as met:
        met.peer.open()
        assert met.connection.error is None


# Who dribbles


@pytest.mark.parametrize("role", raw_peer.ROLES)
def test_a_frame_that_is_dribbled_ends_the_connection(role: str) -> None:
    with raw_peer.meet(role, wsmux.Config(message_timeout=SOON)) as met:
        stream_id = met.peer.open()
        frame = met.peer.frame(BINARY, message(stream_id, DATA, bytes(1000)))
        dribble(met, [frame[i : i + 1] for i in range(500)])
        code, reason = met.peer.recv_close()
        assert (code, reason) == (
            1008,
            "a message was incomplete for Config.message_timeout = 0.4 s",
        )
        met.check_bystanders()


@pytest.mark.parametrize("role", raw_peer.ROLES)
def test_fragments_with_pings_between_them_do_not_stretch_the_time(role: str) -> None:
    config = wsmux.Config(message_timeout=SOON, max_pings=100_000)
    with raw_peer.meet(role, config) as met:
        stream_id = met.peer.open()
        met.peer.send_frame(BINARY, message(stream_id, DATA), fin=False)
        part = met.peer.frame(CONTINUATION, b"x", fin=False) + met.peer.frame(raw_peer.PING)
        dribble(met, [part] * 900)
        assert met.peer.recv_close()[0] == 1008


def dribble(met: raw_peer.Meeting, parts: list[bytes]) -> None:
    """Send parts with pauses between them until the connection has ended."""
    for part in parts:
        if met.connection.error is not None:
            return
        met.peer.send(part)
        time.sleep(0.01)


# Who leaves streams half open


@pytest.mark.parametrize("protocol", NAMES)
def test_a_half_open_stream_is_reset_and_others_are_not(protocol: str) -> None:
    config = wsmux.Config(half_open_timeout=SOON)
    ours, theirs = socket.socketpair()
    with (
        wsmux.from_socket(theirs, role="server", protocol=protocol, config=config) as server,
        wsmux.from_socket(ours, role="client", protocol=protocol) as client,
    ):
        kept, halved = client.open_stream(), client.open_stream()
        for stream in (kept, halved):
            stream.timeout = WAIT
            stream.write(b"x")
        there, waiting = (server.accept_stream(timeout=WAIT) for _ in range(2))
        there.timeout = waiting.timeout = WAIT
        assert (there.read(1), waiting.read(1)) == (b"x", b"x")
        waiting.close_write()
        with pytest.raises(wsmux.StreamReset, match="Config.half_open_timeout = 0.4 s"):
            waiting.read(1)
        kept.write(b"y")
        assert there.read(1) == b"y"


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["wsmux", "js-ws", "yamux"])
def test_10_000_half_open_streams_fit_40_mib_and_are_ended(
    protocol: str, capfd: pytest.CaptureFixture[str]
) -> None:
    count = 10_000
    limits = dict.fromkeys(("max_streams", "max_unaccepted", "max_control_frames"), 2 * count)
    config = wsmux.Config(half_open_timeout=8.0, open_timeout=None, **limits)
    with attacked(protocol, config) as victim:
        victim.drain()
        server, before = victim.connection, memory()
        for n in range(count):
            victim.sock.sendall(opening_of(protocol, n))
        streams = [server.accept_stream(timeout=WAIT) for _ in range(count)]
        for stream in streams:
            stream.close_write()
        grown = memory() - before
        with capfd.disabled():
            print(f"\n{protocol}: {grown / MIB:.1f} MiB for {count} streams")  # noqa: T201
        assert grown <= 40 * MIB
        assert server.wait_drained(60.0)
        with pytest.raises(wsmux.StreamReset, match=r"Config.half_open_timeout = 8.0 s"):
            streams[-1].read(1)
