"""Scripts that tests run in a process of their own.

``python -m tests.helpers.process_scripts WIRE NAME ARGUMENT...``. Each ends with exit code 0 when
all is well. Nothing is printed then.
"""

from __future__ import annotations

import atexit
import ctypes
import dis
import gc
import logging
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

import wsmux
from wsmux.cluster import Cluster
from wsmux.cluster.links import Link
from wsmux.exceptions import CloseCode
from wsmux.runtime.deadline import Deadline
from wsmux.testing import FaultProxy

from .inside import multiplexer_of, send_lock_of
from .pure_peer import PurePeer
from .wires import WIRES

__all__ = ["AT_EXIT", "run"]

# Seconds that a script may take, and that one call in it may; on an idle machine, one does.
LIMIT = 120.0
WAIT = 3.0
PROMPT = 1.0

# Seconds after which what does not come counts as stuck; a busy machine may take several.
STUCK = 20.0

# Seconds for a forked child to do what it has to and to exit; a machine may be busy.
CHILD = 20.0

CALM = wsmux.Config(ping_interval=None)
LIBRARY = str(Path(wsmux.__file__).parent)

GENEROUS = wsmux.Config(receive_window=2**31, max_connection_buffer=2**31)

# What the connections of a script speak; the first argument.
PROTOCOL = "wsmux"

# What no peer may send, by wire.
BROKEN = {
    "wsmux": b"\x00\x4d\x00",
    "js-ws": b"\x00\x00\x4d\x00",
    "yamux": b"\xff" * 12,
    "bymux": b"\xff",
}


# Scripts that are not measured: an interrupt or a fork would leave a lock of coverage's locked, and
# its tracer cannot be in two interpreters.
UNMEASURED = ("interrupt", "fork", "child", "isolated", "subinterpreter")


def run(
    name: str,
    *args: str,
    protocol: str = "wsmux",
    limit: float = LIMIT,
    python: str = sys.executable,
    path: tuple[Path, ...] = (),
) -> None:
    """Run a script, and check that it ends well, in time, and says nothing.

    ``path`` is where another ``python`` finds what this one has installed.
    """
    checkout = Path(__file__).parent.parent.parent
    root = Path(wsmux.__file__).parent.parent
    options = ["-X", "faulthandler", "-W", "ignore:This process:DeprecationWarning"]  # of os.fork
    hidden = ("COV_", "COVERAGE_") if name.startswith(UNMEASURED) else ()
    process = subprocess.Popen(
        [python, *options, "-m", "tests.helpers.process_scripts", protocol, name, *args],
        cwd=checkout,
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith(hidden)},
            "PYTHONPATH": os.pathsep.join(map(str, (root, checkout, *path))),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, problems = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)  # makes faulthandler show where they hang
        output, problems = process.communicate(timeout=LIMIT)
    assert (process.returncode, output, problems) == (0, "", ""), problems


def echo(stream: wsmux.Stream) -> None:
    while data := stream.read(65536):
        stream.write(data)


def wait_for(condition: Callable[[], object], seconds: float = WAIT) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("did not come in time")
        time.sleep(0.002)


def comes_true(condition: Callable[[], object]) -> bool:
    try:
        wait_for(condition, STUCK)
    except AssertionError:
        return False
    return True


def pair(**options: Any) -> tuple[wsmux.Connection, wsmux.Connection]:
    return wsmux.pair(protocol=PROTOCOL, **options)


def facing_a_peer(mine: wsmux.Config, theirs: wsmux.Config) -> tuple[wsmux.Connection, PurePeer]:
    """Return a connection, and a peer without threads that has said all it says at first."""
    ours, other = socket.socketpair()
    connection = wsmux.from_socket(ours, role="client", protocol=PROTOCOL, config=mine)
    peer = PurePeer(other, PROTOCOL, config=theirs)
    peer.send()
    return connection, peer


def by_hand() -> tuple[wsmux.Connection, wsmux.Stream, PurePeer]:
    """Return a connection, a stream with endless credit, and the peer that gave it."""
    connection, peer = facing_a_peer(CALM, GENEROUS)
    stream = connection.open_stream(WAIT)
    peer.accept(1)
    return connection, stream, peer


def in_daemon(function: Callable[..., object], *args: Any) -> None:
    threading.Thread(target=function, args=args, daemon=True).start()


# Fork


def raises_forked(call: Callable[[], object]) -> bool:
    started = time.monotonic()
    try:
        call()
    except wsmux.ForkedError:
        return time.monotonic() - started < PROMPT
    return False


def check_in_child(connection: wsmux.Connection, stream: wsmux.Stream) -> list[str]:
    """Return the calls that do not raise ForkedError promptly in this forked child."""
    calls: dict[str, Callable[[], object]] = {
        "open_stream": connection.open_stream,
        "accept_stream": connection.accept_stream,
        "iterate": lambda: next(iter(connection)),
        "ping": connection.ping,
        "go_away": connection.go_away,
        "read": lambda: stream.read(1),
        "readall": stream.read,
        "write": lambda: stream.write(b"x"),
    }
    wrong = [name for name, call in calls.items() if not raises_forked(call)]
    started = time.monotonic()
    repr(connection), repr(stream), connection.stats()
    stream.close()
    connection.close()
    connection.abort()
    connection.wait_closed()
    connection.wait_drained()
    if time.monotonic() - started > PROMPT:
        wrong.append("closing")
    return wrong


def in_child(function: Callable[[], object]) -> int:
    """Run a function in a forked child that exits as interpreters do; return its exit code."""
    pid = os.fork()
    if not pid:
        sys.exit(0 if function() else 3)
    wait_for(lambda: exited(pid), CHILD)
    return codes.pop(pid)


codes: dict[int, int] = {}


def exited(pid: int) -> bool:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        codes[pid] = os.waitstatus_to_exitcode(status)
    return bool(done)


def fork(unread: str) -> None:
    """Fork with a connection in full use, every blocking call of the parent under way."""
    ours, theirs = pair(config=CALM)
    stream = ours.open_stream()
    stream.write(b"hello")
    peer = theirs.accept_stream()
    peer.read(5)
    if unread == "unread":
        peer.write(b"unread")
        KEPT.append(theirs.open_stream())
        wait_for(lambda: ours.stats().unaccepted == 1 and ours.stats().unread_bytes == 6)
    else:
        in_daemon(raises_closed, ours.accept_stream)
    ours.ping(WAIT)
    theirs.ping(WAIT)

    assert in_child(lambda: not report(check_in_child(ours, stream))) == 0
    assert in_child(lambda: not report(events_held())) == 0

    # What the parent sent arrives, and not a byte more; a wire may measure its path meanwhile.
    wait_for(lambda: theirs.stats().bytes_received == ours.stats().bytes_sent)
    wait_for(lambda: ours.stats().bytes_received == theirs.stats().bytes_sent)
    stream.write(b"still")
    assert peer.read(5) == b"still"
    ours.ping(WAIT)
    ours.close()
    theirs.close()


def raises_closed(call: Callable[[], object]) -> None:
    try:
        call()
    except wsmux.ConnectionClosed:
        return


def report(wrong: list[str]) -> list[str]:
    if wrong:
        sys.stderr.write(f"no ForkedError, or not at once: {wrong}\n")
    return wrong


def events_held() -> list[str]:
    """Return the descriptors that could wake or keep the parent's threads."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # the one that listed them
    return [link for link in links if "eventfd" in link]


def child_connects(how: str) -> None:
    """Let a forked child connect anew to the parent's server, while the parent goes on."""
    with wsmux.serve(stream_handler=echo) as server, wsmux.connect(server.url) as connection:
        if how == "os":
            assert in_child(lambda: echoes(server.url)) == 0
        elif how == "daemon":
            for _ in range(5):
                assert in_child(lambda: works(connection, server.url)) == 0
                connection.ping(WAIT)
        else:
            context = multiprocessing.get_context("fork")
            process = context.Process(target=exit_by, args=(server.url,))
            process.start()
            process.join(WAIT)
            assert process.exitcode == 0
        connection.ping(WAIT)
        assert echoes(server.url)


def works(connection: wsmux.Connection, url: str) -> bool:
    """The worker that a daemon forks: no use of its connection, then tasks in threads of mine.

    It ends as such workers do, without a word.
    """
    fine = raises_forked(connection.open_stream)
    done: list[bool] = []
    tasks = [threading.Thread(target=lambda: done.append(echoes(url))) for _ in range(3)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    os._exit(0 if fine and done == [True] * 3 else 3)


def exit_by(url: str) -> None:
    sys.exit(0 if echoes(url) else 3)


def echoes(url: str) -> bool:
    with wsmux.connect(url) as connection, connection.open_stream() as stream:
        stream.timeout = WAIT
        stream.write(b"ping")
        return stream.read(4) == b"ping"


def fork_under_load(count: str = "3") -> None:
    """Fork again and again while other threads hold and release every lock."""
    ours, theirs = pair(config=CALM)
    in_daemon(pump, ours)
    in_daemon(pump, theirs)
    in_daemon(sink, ours)
    in_daemon(sink, theirs)
    for _ in range(int(count)):
        before = ours.stats().bytes_received
        assert in_child(lambda: raises_forked(ours.ping) and raises_forked(theirs.open_stream)) == 0
        wait_for(lambda before=before: ours.stats().bytes_received > before)  # type: ignore[misc]
    assert not ours.closed
    ours.abort()
    theirs.abort()


def pump(connection: wsmux.Connection) -> None:
    try:
        with connection.open_stream() as stream:
            while True:
                stream.write(bytes(10_000))
    except (wsmux.ConnectionClosed, ValueError):
        return


def sink(connection: wsmux.Connection) -> None:
    try:
        stream = connection.accept_stream()
        while stream.read(65536):
            pass
    except wsmux.ConnectionClosed:
        return


def child_stops_server() -> None:
    """Leave a server's block in the child; the parent's server must go on serving."""
    with wsmux.serve(stream_handler=echo) as server:
        pid = os.fork()
        if not pid:
            server.shutdown()
            os._exit(0)
        wait_for(lambda: exited(pid))
        assert codes.pop(pid) == 0
        assert echoes(server.url)


def child_leaves_server_block() -> None:
    with wsmux.serve(stream_handler=echo) as server:
        url = server.url
        assert in_child(lambda: True) == 0
        assert echoes(url)


# Exit


def exit_with(state: str) -> None:
    """Leave the interpreter without closing anything."""
    EXITS[state]()


def exit_idle() -> None:
    server = wsmux.serve(stream_handler=echo, protocols=[PROTOCOL])
    KEPT.extend((server, wsmux.connect(server.url, protocol=PROTOCOL)))


def exit_blocked_reader() -> None:
    exit_idle()
    stream = KEPT[1].open_stream(WAIT)
    in_daemon(stream.read)
    wait_for(lambda: KEPT[1].stats().waiting_readers)


def exit_blocked_writer() -> None:
    connection, stream, peer = by_hand()
    KEPT.extend((connection, stream, peer))
    in_daemon(stream.write, bytes(10_000_000))
    wait_for(lambda: connection.stats().bytes_sent > 1000)


def exit_unread() -> None:
    ours, theirs = pair()
    stream = ours.open_stream()
    stream.write(b"unread")
    KEPT.extend((ours, theirs, stream))


def exit_unflushed(*modes: str) -> None:
    ours, theirs = pair()
    for mode in modes:
        file = ours.open_stream().makefile(mode)
        file.write(b"x" if "b" in mode else "x")
        KEPT.append(file)
    KEPT.extend((ours, theirs))


def exit_by_sys_exit() -> None:
    exit_blocked_reader()
    sys.exit(0)


def exit_in_handler() -> None:
    entered = threading.Event()

    def handler(connection: wsmux.Connection) -> None:
        entered.set()
        connection.accept_stream()

    server = wsmux.serve(handler)
    KEPT.extend((server, wsmux.connect(server.url)))
    entered.wait(WAIT)


def exit_at_exit() -> None:
    exit_idle()
    server, connection = KEPT
    atexit.register(server.shutdown, 1)
    atexit.register(connection.close, 1)


def exit_in_cycles() -> None:
    ours, theirs = pair()
    stream = ours.open_stream()
    cycle: list[object] = [stream, stream.makefile("rwb"), ours, theirs]
    cycle.append(cycle)
    KEPT.append(cycle)


def exit_during_handshake() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    in_daemon(wsmux.connect, f"ws://127.0.0.1:{listener.getsockname()[1]}")
    KEPT.extend((listener, listener.accept()))


def exit_while_closing() -> None:
    connection, stream, peer = by_hand()
    KEPT.extend((connection, stream, peer))
    in_daemon(connection.close)
    wait_for(lambda: connection.closed)


def exit_in_outage() -> None:
    """Leave a call that waits, an attempt that hangs, and the other end, at their posts."""
    server = wsmux.serve(stream_handler=echo, protocols=[PROTOCOL], resume=True)
    proxy = FaultProxy(server.port)
    connection = wsmux.connect(proxy.url, protocol=PROTOCOL, resume=True)
    KEPT.extend((server, proxy, connection))
    in_daemon(connection.open_stream(WAIT).read)
    wait_for(lambda: connection.stats().waiting_readers)
    silent = socket.create_server(("127.0.0.1", 0))
    KEPT.append(silent)
    proxy.target = silent.getsockname()
    proxy.reset()
    KEPT.append(silent.accept())
    wait_for(lambda: [each for each in server.connections if each.stats().detached is not None])


KEPT: list[Any] = []

EXITS: dict[str, Callable[[], None]] = {
    "idle": exit_idle,
    "blocked-reader": exit_blocked_reader,
    "blocked-writer": exit_blocked_writer,
    "unread": exit_unread,
    "unflushed-writers": lambda: exit_unflushed("w", "wb"),
    "unflushed-pairs": lambda: exit_unflushed("rw", "rwb"),
    "sys-exit": exit_by_sys_exit,
    "in-handler": exit_in_handler,
    "atexit": exit_at_exit,
    "cycles": exit_in_cycles,
    "during-handshake": exit_during_handshake,
    "while-closing": exit_while_closing,
    "outage": exit_in_outage,
}

# What ``at_exit`` uses then.
AT_EXIT = ["old", "pair", "serve", "connect", "as_socket", "watch"]


def at_exit(kind: str) -> None:
    """Use streams, old and new ones, when the interpreter exits."""
    logging.getLogger("wsmux").addHandler(logging.NullHandler())
    server = wsmux.serve(stream_handler=echo, protocols=[PROTOCOL])
    connection = wsmux.connect(server.url, protocol=PROTOCOL)
    ours, theirs = pair()
    KEPT.extend((server, connection, ours, theirs))

    def talk(opener: wsmux.Connection) -> None:
        with opener.open_stream(WAIT) as stream:
            stream.timeout = WAIT
            stream.write(b"there and back")
            assert read_exactly(stream, 14) == b"there and back"

    def old() -> None:
        near = ours.open_stream(WAIT)
        near.write(b"through")
        assert theirs.accept_stream(WAIT).read(7) == b"through"
        for _ in range(3):
            talk(connection)

    def new(make: Callable[[], object]) -> None:
        try:
            make()
        except wsmux.NoThreadError:
            return
        except wsmux.HandshakeError as error:
            if error.status != 503:
                raise

    def served() -> None:
        with wsmux.serve(stream_handler=echo, protocols=[PROTOCOL]) as another:
            talk(wsmux.connect(another.url, protocol=PROTOCOL))

    kinds = {
        "old": old,
        "pair": lambda: new(pair),
        "serve": lambda: new(served),
        "connect": lambda: new(lambda: wsmux.connect(server.url, protocol=PROTOCOL)),
        "as_socket": lambda: new(lambda: ours.open_stream(WAIT).as_socket()),
        "watch": lambda: new(lambda: wsmux.StallWatch(server)),
    }
    atexit.register(kinds[kind])


# Collection


def collect_under_mutex(kind: str) -> None:
    """Collect a dropped stream, or file over one, in a thread that holds the mutex."""
    gc.disable()
    ours, theirs = pair(config=CALM)
    stream = ours.open_stream()
    stream.write(b"first")
    peer = theirs.accept_stream()
    assert peer.read(5) == b"first"
    resets = WIRES[PROTOCOL].resets
    cycle: list[object] = [stream if kind == "stream" else stream.makefile(kind)]
    if "w" in kind:
        cycle[0].write(b"x" if "b" in kind else "x")  # type: ignore[attr-defined]
    cycle.append(cycle)
    del stream, cycle
    with multiplexer_of(ours).mutex:
        gc.collect()
    ours.ping(WAIT)  # makes the I/O thread take a turn
    peer.timeout = WAIT
    try:
        left = peer.read(1)
    except wsmux.StreamReset:
        assert resets
        return
    assert not resets
    assert not left


# Signals


def interrupt_when_blocked(blocked: Callable[[], bool] | None = None) -> None:
    """Send this process a SIGINT as soon as its main thread stays in one place."""
    main = threading.main_thread().ident
    assert main is not None

    def watch() -> None:
        wait_for(blocked or (lambda: settled(main)))
        signal.pthread_kill(main, signal.SIGINT)

    in_daemon(watch)


def settled(thread: int) -> bool:
    """Return whether a thread waits in a call of the library, many looks in a row."""
    for _ in range(10):
        frame: FrameType | None = sys._current_frames()[thread]
        if frame is None or frame.f_code.co_name not in (
            "park",
            "park_beside",
            "wait",
            "wait_writable",
            "join",
        ):
            return False
        while frame is not None and not frame.f_code.co_filename.startswith(LIBRARY):
            frame = frame.f_back
        if frame is None:
            return False
        time.sleep(0.002)
    return True


def check_locks(connection: wsmux.Connection) -> None:
    check_lock(multiplexer_of(connection).mutex)
    check_lock(send_lock_of(connection))


def check_lock(lock: threading.Lock) -> None:
    assert comes_free(lock), "a lock is held for ever"


def comes_free(lock: threading.Lock) -> bool:
    """Return whether a lock is let go, without taking it: who fails to get one leaves its work."""
    return comes_true(lambda: not lock.locked())


def interrupted(call: Callable[[], object], *, twice: bool = False) -> None:
    """Check that Ctrl-C comes out of a blocking call."""
    for _ in range(1 + twice):
        interrupt_when_blocked()
        try:
            call()
        except KeyboardInterrupt:
            continue
        raise AssertionError("no KeyboardInterrupt")


def interrupt(call: str) -> None:
    """Interrupt a blocking call; the connection must be as usable as before."""
    ours, theirs = pair(config=wsmux.Config(ping_interval=None, max_pending_opens=1))
    window = ours.config.receive_window
    stream = ours.open_stream()
    stream.write(b"x")
    peer = theirs.accept_stream()
    if call == "read":
        interrupted(lambda: stream.read(1), twice=True)
        peer.write(b"answer")
        assert stream.read(10) == b"answer"
    elif call == "readall":
        interrupted(stream.read)
        peer.close_write()
        assert stream.read() == b""
    elif call == "write":
        interrupted(lambda: stream.write(bytes(2 * window)), twice=True)
        read_exactly(peer, window)
        assert stream.write(b"more") == 4
        assert read_exactly(peer, 4) == b"more"
    elif call == "accept_stream":
        interrupted(ours.accept_stream, twice=True)
        KEPT.append(theirs.open_stream())
        ours.accept_stream(WAIT)
    elif call == "iterate":
        interrupted(lambda: list(ours))
    elif call == "wait_drained":
        interrupted(ours.wait_drained)
    elif call == "wait_closed":
        interrupted(ours.wait_closed)
    check_locks(ours)
    ours.ping(WAIT)
    ours.close()
    theirs.close()


def read_exactly(stream: wsmux.Stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += stream.read(size - len(data))
    return data


def interrupt_alone(call: str) -> None:
    """Interrupt a call that waits for a peer that says nothing."""
    config = wsmux.Config(ping_interval=None, max_pending_opens=1, close_timeout=60)
    connection, peer = facing_a_peer(config, wsmux.Config(max_streams=1))
    if call == "ping":
        interrupted(connection.ping, twice=True)
        assert not connection.closed
        assert connection.stats().rtt is None
    elif call == "open_stream":
        kept = connection.open_stream(WAIT)
        interrupted(connection.open_stream, twice=True)
        kept.reset()
        in_daemon(peer.serve)
        assert connection.open_stream(WAIT).id == kept.id + 2
        connection.abort()
    elif call == "close":
        interrupted(connection.close)
        assert raises_ok(connection.open_stream)
    check_locks(connection)
    peer.sock.shutdown(socket.SHUT_RDWR)
    assert connection.wait_closed(WAIT)


def raises_ok(call: Callable[[], object]) -> bool:
    try:
        call()
    except wsmux.ConnectionClosedOK:
        return True
    return False


def interrupt_full_socket() -> None:
    """Interrupt a write that waits for the socket; what was queued must still go out by itself."""
    connection, stream, peer = by_hand()
    interrupted(lambda: stream.write(bytes(10_000_000)))
    check_locks(connection)
    in_daemon(swallow, peer.sock)
    wait_for(lambda: not multiplexer_of(connection).queue.has_output())
    assert not connection.closed
    connection.abort()


def swallow(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


def interrupt_full_queue() -> None:
    """Interrupt a write that waits for room behind other writers."""
    connection, stream, peer = by_hand()
    others = [
        connection.open_stream(WAIT) for _ in range(2 + connection.config.max_send_queue // 65536)
    ]
    peer.accept(len(others))
    for other in others:
        in_daemon(write_once, other)
    wait_for(lambda: connection.stats().waiting_for_room)
    interrupted(lambda: stream.write(bytes(10_000_000)))
    check_lock(multiplexer_of(connection).mutex)
    in_daemon(swallow, peer.sock)
    assert stream.write(b"goes on") == 7
    connection.abort()


def write_once(stream: wsmux.Stream, data: bytes = bytes(1_000_000)) -> None:
    try:
        stream.write(data)
    except (wsmux.WsmuxError, ValueError):
        return


def interrupt_serve_forever(presses: str) -> None:
    """Press Ctrl-C while a client keeps a stream open: once with patience, or twice."""
    opened = threading.Event()

    def handler(connection: wsmux.Connection) -> None:
        opened.set()
        connection.wait_closed()

    server = wsmux.serve(handler)
    connection = wsmux.connect(server.url)
    stream = connection.open_stream()
    opened.wait(WAIT)
    KEPT.append(stream)
    if presses == "1":
        stream.reset()
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        for _ in range(int(presses)):
            wait_for(lambda: settled(main))
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.2)  # the pace of a hand

    in_daemon(press)
    try:
        with server:
            server.serve_forever()
    except KeyboardInterrupt:
        assert connection.wait_closed(WAIT)
        return
    raise AssertionError("no KeyboardInterrupt")


# An interrupt at every point where CPython looks for one


class Interrupter:
    """Send this thread a signal at the ``at``-th point, within the library.

    CPython handles signals after a call has returned, when a function starts and at a jump back.
    """

    def __init__(self, at: int, handler: Callable[[], object]) -> None:
        self.left = at
        self.where = ""
        signal.signal(signal.SIGALRM, lambda number, frame: handler())

    def __enter__(self) -> Self:
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(LIBRARY) or collecting(frame):
            return None
        frame.f_trace_opcodes = True
        if event == "call" or (event == "opcode" and behind_a_check(frame)):
            self.left -= 1
            if not self.left:
                sys.settrace(None)
                code = frame.f_code
                self.where = f"{code.co_qualname}:{frame.f_lineno}"
                signal.pthread_kill(threading.get_ident(), signal.SIGALRM)
        return self.trace


def collecting(frame: FrameType | None) -> bool:
    """Return whether a finalizer is running, which swallows a Ctrl-C in any program."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


CHECKED = ("CALL", "CALL_FUNCTION_EX", "CALL_KW")
behind: dict[object, frozenset[int]] = {}


def behind_a_check(frame: FrameType) -> bool:
    code = frame.f_code
    if code not in behind:
        found, last = set(), ""
        for instruction in dis.get_instructions(code):
            if last in CHECKED:
                found.add(instruction.offset)
            last = instruction.opname
            if last == "JUMP_BACKWARD":  # what stands behind it is reached from elsewhere
                found.add(instruction.argval)
        behind[code] = frozenset(found)
    return frame.f_lasti in behind[code]


class Bench:
    """Hold a fresh pair with a stream, for one interrupted call."""

    def __init__(self) -> None:
        self.ours, self.theirs = pair(config=CALM)
        self.stream = self.ours.open_stream()
        self.stream.write(b"begin")
        self.peer = self.theirs.accept_stream(WAIT)
        self.peer.read(5)

    def done(self) -> None:
        self.ours.abort()
        self.theirs.abort()


def read_what_is_there(bench: Bench) -> Callable[[], object]:
    bench.peer.write(b"there")
    wait_for(lambda: bench.ours.stats().unread_bytes == 5)
    return lambda: bench.stream.read(5)


def read_the_rest(bench: Bench) -> Callable[[], object]:
    read_what_is_there(bench)
    bench.stream.read(2)
    return lambda: bench.stream.read(5)


def read_what_comes(bench: Bench) -> Callable[[], object]:
    def later() -> None:
        wait_for(lambda: bench.ours.stats().waiting_readers or bench.ours.closed)
        write_once(bench.peer, b"comes")

    in_daemon(later)
    bench.stream.timeout = 0.5
    return lambda: bench.stream.read(5)


def accept_what_is_there(bench: Bench) -> Callable[[], object]:
    KEPT.append(bench.theirs.open_stream())
    wait_for(lambda: bench.ours.stats().unaccepted)
    return bench.ours.accept_stream


CALLS: dict[str, Callable[[Bench], Callable[[], object]]] = {
    "write": lambda bench: lambda: bench.stream.write(b"word"),
    "write-in-frames": lambda bench: lambda: bench.stream.write(bytearray(150_000)),
    "read": read_what_is_there,
    "read-rest": read_the_rest,
    "read-blocked": read_what_comes,
    "open_stream": lambda bench: bench.ours.open_stream,
    "accept_stream": accept_what_is_there,
    "ping": lambda bench: lambda: bench.ours.ping(WAIT),
    "go_away": lambda bench: bench.ours.go_away,
    "close_write": lambda bench: bench.stream.close_write,
    "close_read": lambda bench: bench.stream.close_read,
    "stream-close": lambda bench: bench.stream.close,
    "reset": lambda bench: bench.stream.reset,
    "close": lambda bench: bench.ours.close,
    "begin_close": lambda bench: bench.ours.begin_close,
    "abort": lambda bench: bench.ours.abort,
}


# Those that end in words of the wire which differ.
OF_THE_WIRE = ("open_stream", "ping", "go_away", "stream-close", "reset", "close", "begin_close")


def press() -> None:
    raise KeyboardInterrupt


def interrupt_everywhere(name: str, how: str) -> None:
    """Interrupt a call at each point; what it leaves behind must work or be dead with a type.

    Args:
        name: the call. how: ``press`` for Ctrl-C; ``use`` for a handler that uses another
            connection and runs out of time there, so that the library itself raises.
    """
    at = untouched = 0
    elsewhere, there = pair(config=CALM)
    other = elsewhere.open_stream()
    other.timeout = 0.0
    KEPT.append(there.accept_stream(WAIT))  # refused otherwise, if all this takes long
    handler = press if how == "press" else lambda: other.read(1)
    while untouched < 5:  # one call may have fewer points than the next
        at += 1
        bench = Bench()
        woken = None
        if not name.startswith(("read", "ping")):
            woken = threading.Event()
            in_daemon(read_until_error, bench.stream, woken)
            wait_for(lambda bench=bench: bench.ours.stats().waiting_readers)  # type: ignore[misc]
        call = CALLS[name](bench)
        with Interrupter(at, handler) as interrupter:
            try:
                call()
            except (KeyboardInterrupt, TimeoutError, wsmux.ConnectionClosed):
                untouched = -1
        untouched += 1
        problem = left_behind(bench, name, woken)
        if problem:
            sys.stderr.write(f"{how} in {name} at {interrupter.where}: {problem}\n")
            sys.stderr.flush()
            os._exit(1)
        bench.done()


def read_until_error(stream: wsmux.Stream, woken: threading.Event) -> None:
    try:
        stream.read(1)
    except (wsmux.WsmuxError, ValueError):
        woken.set()


def read_what_is_left(stream: wsmux.Stream) -> None:
    stream.timeout = 0.02
    try:
        while stream.read(64):
            pass
    except TimeoutError:
        stream.timeout = STUCK


def stayed_empty(connection: wsmux.Connection) -> bool:
    return comes_true(
        lambda: connection.closed or not multiplexer_of(connection).queue.has_output()
    )


def left_behind(bench: Bench, name: str, woken: threading.Event | None) -> str:
    """Say what an interrupted call broke, or nothing."""
    ours, stream = bench.ours, bench.stream
    for lock in (multiplexer_of(ours).mutex, send_lock_of(ours)):
        if not comes_free(lock):
            return "a lock is held for ever"
    if not stayed_empty(ours):
        return "a frame stays in the queue"
    if ours.closed and not ours.wait_closed(STUCK):
        return "the connection is closing for ever"
    stream.timeout = STUCK
    try:
        if multiplexer_of(ours).protocol.may_ping() or PROTOCOL in ("wsmux", "js-ws"):
            ours.ping(STUCK)
        if name in ("write", "write-in-frames") and not stream.closed:
            in_daemon(read_until_error, bench.peer, threading.Event())
            stream.write(b"more")
        if name.startswith("read"):
            read_what_is_left(stream)
            bench.peer.write(b"more")
            stream.read(1)
    except (wsmux.ConnectionClosed, wsmux.StreamError):
        pass
    except (TimeoutError, wsmux.ConcurrencyError, LookupError) as error:
        return f"{type(error).__name__}: {error}"
    if name in ("stream-close", "reset"):
        CALLS[name](bench)()
        try:
            bench.peer.timeout = STUCK
            if bench.peer.read(1) and not ours.closed:
                return "the peer reads on"
            bench.peer.write(bytes(400_000))
            if name == "reset" or WIRES[PROTOCOL].stopped:
                return "the peer may write for ever"
        except (wsmux.StreamError, wsmux.ConnectionClosed):
            pass
        except TimeoutError as error:
            return f"the second call did nothing: {error}"
    bench.done()
    if woken is not None and not woken.wait(STUCK):
        return "a blocked reader of the stream is never woken"
    return ""


# The end of something, and the same again in a signal handler


class Ends(NamedTuple):
    """What is interrupted, what the handler calls, and whether everything has ended then."""

    call: Callable[[], object]
    end: Callable[[], object]
    over: Callable[[], object]


def ends_server() -> Ends:
    server = wsmux.serve(wsmux.Connection.wait_closed, config=CALM)
    client = wsmux.connect(server.url, config=CALM)
    wait_for(lambda: server.connections)

    def end() -> None:
        server.shutdown(0.0)

    return Ends(end, end, lambda: client.close_code == CloseCode.GOING_AWAY)


def ends_serve_forever() -> Ends:
    server = wsmux.serve(wsmux.Connection.wait_closed)
    in_daemon(shut_down_once_awaited, server, threading.get_ident())

    def end() -> None:
        server.shutdown(0.0)

    return Ends(server.serve_forever, end, lambda: server.stopping)


def shut_down_once_awaited(server: wsmux.Server, thread: int) -> None:
    wait_for(lambda: server.stopping or settled(thread), LIMIT)
    server.shutdown(0.0)


def ends_cluster(*url: str) -> Ends:
    cluster = Cluster(*url)
    _, connection = ends = pair(config=CALM)
    cluster.join(connection, "a")
    one, other = connection.open_stream(), connection.open_stream()
    cluster.relay(one, other)  # begins the thread for that
    subscription = cluster.subscribe("t")

    def over() -> bool:
        for each in ends:
            each.abort()
        return raises(ValueError, subscription.read) and not threads_of_clusters()

    return Ends(cluster.close, cluster.close, over)


def ends_beginning_cluster(*url: str) -> Ends:
    cluster = Cluster(*url)
    return Ends(
        lambda: raises(ValueError, lambda: cluster.node),
        cluster.close,
        lambda: not threads_of_clusters(),
    )


def ends_link() -> Ends:
    link, (ours, theirs) = Link(True), pair(config=CALM)
    assert link.connected(lambda _: ours, Deadline(WAIT)) is ours
    return Ends(link.close, link.close, lambda: ours.closed and theirs.wait_closed(WAIT))


def threads_of_clusters() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("wsmux-cluster")]


def raises(kind: type[Exception], call: Callable[[], object]) -> bool:
    try:
        call()
    except kind:
        return True
    return False


ENDS: dict[str, Callable[..., Ends]] = {
    "server": ends_server,
    "serve_forever": ends_serve_forever,
    "cluster": ends_cluster,
    "beginning cluster": ends_beginning_cluster,
    "link": ends_link,
}


def interrupt_end(kind: str, stride: str, *args: str) -> None:
    """End something, and once more in a signal handler, at each point or at each so many."""
    at, untouched = 1, 0
    while untouched < 3:  # one call may have fewer points than the next
        ends = ENDS[kind](*args)
        with Interrupter(at, ends.end) as interrupter:
            ends.call()
        untouched = untouched + 1 if interrupter.left > 0 else 0
        ends.end()
        assert comes_true(ends.over), f"the end goes on that {interrupter.where} was to make"
        at += int(stride)
    assert at > 10 * int(stride)


def interrupt_waiting_end() -> None:
    """Shut a server down in a signal handler, while a first call waits for a stream to end."""
    server = wsmux.serve(wsmux.Connection.wait_closed, config=CALM)
    client = wsmux.connect(server.url, config=CALM)
    stream = client.open_stream()
    wait_for(lambda: server.connections and server.connections[0].stats().streams)
    main, handled = threading.get_ident(), threading.Event()

    def handle(*_: object) -> None:
        server.shutdown(0.0)
        handled.set()

    def press() -> None:
        wait_for(lambda: server.stopping and settled(main))
        signal.pthread_kill(main, signal.SIGALRM)
        assert handled.wait(WAIT), "the handler waits for what it interrupts"
        assert not client.closed, "the first call has not waited for the stream"
        stream.reset()

    signal.signal(signal.SIGALRM, handle)
    in_daemon(press)
    server.shutdown(None)
    assert handled.is_set()
    assert client.close_code == CloseCode.GOING_AWAY


# An interrupt at a moment of the clock


class Alarm(Exception):
    """The error that a handler of SIGALRM raises to end a call: an ordinary error by its type."""


class Moment:
    """Raise in this thread after so many seconds, as Ctrl-C, as SIGALRM, or from another thread."""

    def __init__(self, how: str, seconds: float) -> None:
        self._how = how
        self._seconds = seconds
        self._thread = threading.get_ident()
        self._over = threading.Event()
        self._other: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._how == "async":
            self._other = threading.Thread(target=self._throw, daemon=True)
            self._other.start()
        else:
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._over.set()
        if self._other is not None:
            self._other.join()

    def _throw(self) -> None:
        if not self._over.wait(self._seconds):
            throw = ctypes.pythonapi.PyThreadState_SetAsyncExc
            throw(ctypes.c_ulong(self._thread), ctypes.py_object(KeyboardInterrupt))


def raise_alarm(*_: object) -> None:
    raise Alarm


def swallowed(unraisable: Any) -> None:
    """Report what a finalizer or callback raised, but an interrupt, as any program loses one."""
    if not issubclass(unraisable.exc_type, Alarm | KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def interrupt_at_random(how: str, count: str, seed: str = "1") -> None:
    """Interrupt calls at so many random moments; what they leave must work or be typed-dead."""
    handler = signal.default_int_handler if how == "sigint" else raise_alarm
    signal.signal(signal.SIGALRM, handler)
    sys.unraisablehook = swallowed
    chance = random.Random(int(seed))
    hit = 0
    while hit < int(count):
        name = chance.choice([*CALLS])
        bench = Bench()
        woken = None
        if not name.startswith(("read", "ping")):
            woken = threading.Event()
            in_daemon(read_until_error, bench.stream, woken)
            wait_for(lambda bench=bench: bench.ours.stats().waiting_readers)  # type: ignore[misc]
        call = CALLS[name](bench)
        was_hit = interrupted_after(how, chance.uniform(1e-6, LONGEST), call)
        hit += was_hit
        problem = left_behind(bench, name, woken) if was_hit else ""
        if problem:
            sys.stderr.write(f"{how} in {name}, number {hit}: {problem}\n")
            sys.stderr.flush()
            os._exit(1)
        bench.done()


# Seconds that most of the calls take.
LONGEST = 0.0004


def interrupted_after(how: str, seconds: float, call: Callable[[], object]) -> bool:
    """Make a call and tell whether an interrupt came out of it, or just behind it."""
    try:
        with Moment(how, seconds):
            call()
    except (Alarm, KeyboardInterrupt):
        return True
    except (wsmux.WsmuxError, TimeoutError):
        pass
    return False


# Code of the application


def reason_looks_at_connection(direction: str) -> None:
    """Let ``code_to_reason`` use the connection, as one that logs does."""

    def reason(code: int) -> BaseException:
        return LookupError(code, connection.stats())

    ours, theirs = socket.socketpair()
    connection = wsmux.from_socket(ours, role="client", code_to_reason=reason)
    with wsmux.from_socket(theirs, role="server") as other, connection.open_stream() as stream:
        stream.write(b"x")
        other.accept_stream().reset(64)
        try:
            stream.read(1) if direction == "read" else write_until_error(stream)
        except LookupError:
            connection.close()
            return
    raise AssertionError("no error of the application's own")


def write_until_error(stream: wsmux.Stream) -> None:
    while True:
        stream.write(b"x")


def log_goes_over_the_connection() -> None:
    """Send log lines over a stream of the connection that logs."""
    connection, stream, peer = by_hand()

    class Remote(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                stream.write(record.getMessage().encode())
            except wsmux.WsmuxError:
                return

    log = logging.getLogger("wsmux")
    log.addHandler(Remote())
    log.setLevel(logging.INFO)
    peer.sock.sendall(BROKEN[PROTOCOL])
    wait_for(lambda: connection.closed)
    peer.sock.close()
    assert connection.wait_closed(WAIT)


IN_SUBINTERPRETER = """
import wsmux
wait = 3.0
def echo(stream):
    stream.write(stream.read(1))
server = wsmux.serve(stream_handler=echo)
connection = wsmux.connect(server.url)
ours, theirs = wsmux.pair()
watch = wsmux.StallWatch(server)
one, other = ours.open_stream(), connection.open_stream()
one.write(b"x"), other.write(b"x")
one.timeout = other.timeout = wait
assert theirs.accept_stream(wait).read(1) == other.read(1) == b"x"
sock = one.as_socket()
{end}
"""


def subinterpreter(end: str) -> None:
    """Use streams in an interpreter that is ended by ``Py_EndInterpreter``."""
    import _testcapi

    endings = {
        "open": "",
        "closed": "watch.stop(), ours.close(), theirs.close(), connection.close()",
    }
    assert _testcapi.run_in_subinterp(IN_SUBINTERPRETER.format(end=endings[end])) == 0


RIVER_IN_SUBINTERPRETER = """
from wsmux import rpc
service = rpc.Service("test")
@service.rpc()
def same(ctx, init):
    return init
note = lambda *event: None
options = {"codec": "json", "on_session_status": note}
server = rpc.serve([service], on_session_transition=note, **options)
handler = rpc.handler([service], **options)
client = rpc.connect(server.url, metadata=lambda: 1, **options)
assert client.rpc("test", "same", 1, 5.0) == 1
refused = rpc.connect("ws://127.0.0.1:1/", eager=True, **options)
pending = refused.submit("test", "same", 1)
unused = rpc.connect(server.url, **options)
"""


def subinterpreter_with_river() -> None:
    """Leave clients and servers of River open in an interpreter that is ended."""
    import _testcapi

    assert _testcapi.run_in_subinterp(RIVER_IN_SUBINTERPRETER) == 0


# Each has to fail typed, and leave no socket behind.
IN_ISOLATED = """
import os

import wsmux

def descriptors():
    return set(os.listdir("/dev/fd"))

before = len(descriptors())
for way in (
    wsmux.pair,
    lambda: wsmux.serve(print),
    lambda: wsmux.StallWatch([]),
):
    try:
        way()
    except wsmux.NoThreadError:
        pass
    else:
        raise AssertionError(way)
assert len(descriptors()) == before
"""


def isolated() -> None:
    """Connect and serve in an isolated sub-interpreter, which has no daemon threads."""
    try:
        import _interpreters as interpreters
    except ImportError:  # up to 3.12
        import _xxsubinterpreters as interpreters
    made = interpreters.create()
    failure = interpreters.run_string(made, IN_ISOLATED)
    assert failure is None, failure
    sys.stderr.flush()
    os._exit(0)  # CPython 3.12 and 3.13 may crash as they end one that has imported ssl


SCRIPTS: dict[str, Callable[..., None]] = {
    "at_exit": at_exit,
    "child_connects": child_connects,
    "child_leaves_server_block": child_leaves_server_block,
    "child_stops_server": child_stops_server,
    "collect_under_mutex": collect_under_mutex,
    "exit_with": exit_with,
    "fork": fork,
    "fork_under_load": fork_under_load,
    "interrupt": interrupt,
    "interrupt_alone": interrupt_alone,
    "interrupt_end": interrupt_end,
    "interrupt_at_random": interrupt_at_random,
    "interrupt_everywhere": interrupt_everywhere,
    "interrupt_full_queue": interrupt_full_queue,
    "interrupt_full_socket": interrupt_full_socket,
    "interrupt_serve_forever": interrupt_serve_forever,
    "interrupt_waiting_end": interrupt_waiting_end,
    "isolated": isolated,
    "log_goes_over_the_connection": log_goes_over_the_connection,
    "reason_looks_at_connection": reason_looks_at_connection,
    "subinterpreter": subinterpreter,
    "subinterpreter_with_river": subinterpreter_with_river,
}

if __name__ == "__main__":
    PROTOCOL = sys.argv[1]
    SCRIPTS[sys.argv[2]](*sys.argv[3:])
