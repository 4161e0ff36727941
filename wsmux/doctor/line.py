"""Run the measuring steps: message limit, idle timeout, round trip, Nagle, load."""

from __future__ import annotations

import socket
import statistics
import threading
import time

from ..config import MAX_HEAD, Config
from ..exceptions import ConnectionClosed, WsmuxError
from ..mux.connection import Connection
from ..mux.stream import Stream
from ..protocols.base import Role
from ..protocols.framing import Opcode
from ..protocols.websocket import WebSocketFraming
from ..runtime.deadline import Deadline
from .plan import Plan
from .report import Report

__all__ = ["idle_cut", "load", "message_limit", "nagle", "round_trip"]

PINGS = 9

# Sizes of messages: the longest by default, and shorter ones to find a lower limit.
SIZES = (1024, 4096, 16 * 1024, 32 * 1024, 64 * 1024, 64 * 1024 + MAX_HEAD)

# The largest frame of Amazon API Gateway; by its published quotas it closes with 1009 on a larger
# one.
GATEWAY = 32 * 1024

# The minimum of delayed acknowledgements on Linux in seconds, with some tolerance for the clock.
DELAYED_ACK = 0.030

# Seconds under load, and round-trip times in seconds that users notice.
LOAD_TIME = 1.0
BLOAT = 0.2
FAR = 0.3

# Bytes per second below which a link is called slow.
SLOW = 1_000_000

NO_ECHO = "not asked for: --echo says that the server sends back what streams carry"


def round_trip(report: Report, plan: Plan, connection: Connection, tcp: float | None) -> float:
    """Send several pings; return the median."""
    took = sorted(connection.ping(plan.timeout) for _ in range(PINGS))
    median = statistics.median(took)
    fact = f"median {median * 1000:.1f} ms, at most {took[-1] * 1000:.1f} ms"
    if tcp is not None:
        fact += f"; TCP alone {tcp * 1000:.1f} ms"
    if median > FAR:
        report.warn("rtt", fact, "use a nearer server, or send more before waiting for an answer")
    else:
        report.ok("rtt", fact)
    return median


def message_limit(report: Report, plan: Plan) -> None:
    """Send increasingly long messages, reconnecting after each that was refused."""
    if not plan.echo:
        report.skip("message limit", NO_ECHO)
        return
    taken = 0
    for size in SIZES:
        why = _refused(plan, size)
        if why is not None:
            fact = f"messages of {size} bytes do not pass, of {taken} they do: {why}"
            least = max(taken - MAX_HEAD, 512)
            fix = f"raise the limit there, or use Config(max_frame_size={least}) at both ends"
            if taken == GATEWAY:
                fix += "; Amazon API Gateway takes no frame above 32 KiB, and has no such setting"
            report.fail("message limit", fact, fix)
            return
        taken = size
    report.ok("message limit", f"messages of {taken} bytes pass, the longest that are sent")


def _refused(plan: Plan, size: int) -> str | None:
    """Return why a message of a size is not echoed; ``None`` if it is."""
    try:
        with plan.connect() as connection, connection.open_stream(plan.timeout) as stream:
            stream.timeout = plan.timeout
            payload = bytes(size - MAX_HEAD)
            stream.write(payload)
            stream.close_write()
            got = len(stream.read())
            return None if got == len(payload) else f"{got} of {len(payload)} bytes came back"
    except (WsmuxError, OSError) as error:
        return str(error)


def idle_cut(report: Report, plan: Plan) -> None:
    """Stay silent, and check whether the connection survives."""
    interval = Config().ping_interval or 0.0
    with plan.connect() as connection:
        began = time.monotonic()
        if connection.wait_closed(plan.idle):
            silence = time.monotonic() - began
            fact = f"the connection was cut after {silence:.1f} s of silence: {connection.error}"
        else:
            try:
                connection.ping(plan.timeout)
            except (TimeoutError, ConnectionClosed) as error:
                silence = plan.idle
                fact = f"after {silence:g} s of silence nothing comes through: {error}"
            else:
                fact = f"{plan.idle:g} s of silence do no harm"
                if plan.idle < interval:
                    fact += "; --idle 90 finds what most proxies do"
                report.ok("idle cut", fact)
                return
        connection.abort()
    if silence > interval:
        fix = f"keep the pings on, at both ends: every {interval:g} s by default"
        report.warn("idle cut", fact, fix)
    else:
        fix = (
            f"ping more often: Config(ping_interval={silence / 2:.2g}); or raise the proxy's limit"
        )
        report.fail("idle cut", fact, fix)


def nagle(report: Report, plan: Plan) -> None:
    """Check whether answers wait for our acknowledgements.

    Nagle's algorithm holds back a small segment while another is unacknowledged; this acknowledges
    late, then at once, and compares. Linux only, where sockets can be set to do so.
    """
    if not hasattr(socket, "TCP_QUICKACK") or not plan.url.startswith("ws:"):
        report.skip("nagle", "only seen on Linux, without TLS")
        return
    try:
        late, soon = (_pinged(plan, quick) for quick in (False, True))
    except (WsmuxError, OSError) as error:
        report.skip("nagle", f"the pings were not answered: {error}")
        return
    fact = f"{late * 1000:.1f} ms when acknowledged late, {soon * 1000:.1f} ms when at once"
    if late - soon > DELAYED_ACK:
        fix = "set TCP_NODELAY where the answers come from: the server, or a proxy on the way"
        report.warn("nagle", f"answers wait for acknowledgements (Nagle): {fact}", fix)
    else:
        report.ok("nagle", f"answers do not wait for acknowledgements: {fact}")


def _pinged(plan: Plan, quick: bool) -> float:
    """Return the median seconds of two simultaneous pings, on a separate WebSocket."""
    deadline = Deadline(plan.timeout)
    with plan.dial(plan.offers, deadline) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        framing = WebSocketFraming(Role.CLIENT, plan.config.max_message_size, 16, True)
        took = []
        for _ in range(PINGS):
            began = time.monotonic()
            for _ in range(2):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, int(quick))
                sock.sendall(framing.encode_control(Opcode.PING, b"12345678"))
            pongs = 0
            while pongs < 2:
                sock.settimeout(max(deadline.remaining() or 0.0, 0.001))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, int(quick))
                count = sock.recv_into(framing.get_buffer())
                if not count:
                    raise ConnectionError("the server has closed the connection")
                pongs += sum(kind is Opcode.PONG for kind, _ in framing.received(count))
            took.append(time.monotonic() - began)
    return statistics.median(took)


def load(report: Report, plan: Plan, connection: Connection, idle: float) -> None:
    """Measure pings while a stream is busy."""
    if not plan.echo:
        report.skip("load", NO_ECHO)
        return
    stop, sent = threading.Event(), [0]
    with connection.open_stream(plan.timeout) as stream:
        stream.timeout = plan.timeout
        workers = [
            threading.Thread(target=_write, args=(stream, stop, sent), daemon=True),
            threading.Thread(target=_drain, args=(stream,), daemon=True),
        ]
        for worker in workers:
            worker.start()
        took, began = [], time.monotonic()
        try:
            while not stop.wait(LOAD_TIME / 20) and time.monotonic() - began < LOAD_TIME:
                took.append(connection.ping(plan.timeout))
        except (TimeoutError, WsmuxError) as error:
            fix = "see what on the way queues so much; Config(max_send_queue=65536) bounds our part"
            report.fail("load", f"under load no pong came: {error}", fix)
            return
        finally:
            elapsed = time.monotonic() - began
            stop.set()
            stream.reset()
            for worker in workers:
                worker.join(plan.timeout)
    _judge(report, sent[0] / elapsed, statistics.median(took), idle)


def _judge(report: Report, rate: float, median: float, idle: float) -> None:
    fact = f"{rate / 1e6:.2f} MB/s, pings {median * 1000:.1f} ms instead of {idle * 1000:.1f} ms"
    if rate < SLOW:
        fix = "send less, or compress it; small Config(max_frame_size=16384) keeps pings quick"
        report.warn("load", f"a slow link: {fact}", fix)
    elif median - idle > BLOAT:
        fix = "use fq_codel or cake on the way's router; Config(max_send_queue=65536) bounds ours"
        report.warn("load", f"queues on the way (bufferbloat): {fact}", fix)
    else:
        report.ok("load", fact)


def _write(stream: Stream, stop: threading.Event, sent: list[int]) -> None:
    piece = bytes(16 * 1024)
    try:
        while not stop.is_set():
            sent[0] += stream.write(piece)
    except (WsmuxError, OSError, ValueError):
        return  # the pings show it


def _drain(stream: Stream) -> None:
    try:
        while stream.read(64 * 1024):
            pass
    except (WsmuxError, OSError, ValueError):
        return  # the pings show it
