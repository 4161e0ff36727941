"""Fork with calls of every kind under way; run in a process of its own, by ``test_forks.py``."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import wsmux
from wsmux import rpc

from ..inside import call_of
from ..waiting import wait_for_value
from .noted_calls import Witness
from .procedures import WAIT


def in_child(function: Callable[[], list[str]]) -> list[str]:
    """Return what a function returns in a forked child that exits as interpreters do."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reads)
        os.write(writes, "\n".join(function()).encode())
        sys.exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        told = pipe.read().decode()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return told.split("\n") if told else []


Named = dict[str, Callable[[], object]]


def wrong(calls: Named, ends: Named) -> list[str]:
    """Return the calls that do not raise ``ForkedError``, and the ends that do not just return."""
    found = []
    for name, call in calls.items():
        try:
            call()
        except wsmux.ForkedError:
            continue
        except BaseException as error:
            name = f"{name}: {error!r}"
        found.append(name)
    for name, end in ends.items():
        try:
            end()
        except BaseException as error:
            found.append(f"{name}: {error!r}")
    return found


def of_client() -> None:
    """Use a client, and its calls, in a child; some of them have unread responses."""
    witness = Witness()
    with rpc.serve([witness.service]) as server, rpc.connect(server.url) as client:
        watched = client.subscribe("test", "watch", "watch")
        read = client.subscribe("test", "count", 2)
        assert read.read() == 0
        upload = client.upload("test", "total", "total")
        stream = client.stream("test", "echo", "echo")
        ended = client.stream("test", "echo", "ended")
        ended.close_write()
        reader = call_of(watched).reader
        wait_for_value(lambda: (reader.unread_messages, call_of(ended).over), (1, True))
        abort = rpc.Abort()
        pending = client.submit("test", "waits", "waits", abort=abort)
        blocked = threading.Thread(target=stream.read)
        blocked.start()
        calls = {
            "rpc": lambda: client.rpc("test", "same", 1),
            "subscribe": lambda: client.subscribe("test", "count", 1),
            "upload": lambda: client.upload("test", "total", 1),
            "stream": lambda: client.stream("test", "echo", 1),
            "wait_connected": client.wait_connected,
            "read what is there": watched.read,
            "read what is over": ended.read,
            "read": stream.read,
            "iterate": lambda: next(iter(stream)),
            "write": lambda: stream.write(1),
            "write of an upload": lambda: upload.write(1),
            "finish": upload.finish,
            "result": pending.result,
            "cancel of a pending call": pending.cancel,
            "take": client.completions().take,
        }
        ends = {
            "cancel": upload.cancel,
            "cancel of a stream": stream.cancel,
            "close": watched.close,
            "close_write": stream.close_write,
            "leave": lambda: stream.__exit__(None, None, None),
            "repr": lambda: repr(client),
            "abort": abort.set,
            "close of the client": client.close,
        }
        assert in_child(lambda: wrong(calls, ends)) == []
        assert in_child(lambda: [*map(str, server.list_sessions() + client.list_sessions())]) == []
        assert len(server.list_sessions()) == len(client.list_sessions()) == 1
        assert not pending.done()
        stream.write("still there")
        blocked.join(WAIT)
        assert watched.read() == "first"
        upload.write(5)
        assert upload.finish(WAIT) == 5
        assert client.rpc("test", "same", 1, WAIT) == 1
        watched.close()


def of_server() -> None:
    """Use what handlers have in a child, and stop the server there."""
    service = rpc.Service("test")
    found: list[list[str]] = []

    @service.stream()
    def forks(
        ctx: rpc.Context, init: object, requests: rpc.Readable, responses: rpc.Writable
    ) -> None:
        calls = {
            "read": requests.read,
            "write": lambda: responses.write(1),
            "defer": lambda: ctx.defer(lambda: None),
        }
        ends = {
            "stop": requests.stop,
            "close": responses.close,
            "cancel": ctx.cancel,
            "metadata": lambda: ctx.metadata,
            "shutdown": server.shutdown,
            "shutdown of the handler": server.handler.shutdown,
        }
        found.append(in_child(lambda: wrong(calls, ends)))
        for request in requests:
            responses.write(request)

    with rpc.serve([service]) as server, rpc.connect(server.url) as client:
        stream = client.stream("test", "forks", None, WAIT)
        stream.write("before or after")
        assert stream.read() == "before or after"
        assert found == [[]]
        stream.close_write()
        assert list(stream) == []


def under_load() -> None:
    """Fork while other threads hold and release every lock."""
    witness = Witness()
    done = threading.Event()
    with rpc.serve([witness.service]) as server, rpc.connect(server.url) as client:

        def talks() -> None:
            while not done.is_set():
                assert client.rpc("test", "same", 1, WAIT) == 1

        stream = client.stream("test", "echo", "echo")
        threads = [threading.Thread(target=talks) for _ in range(3)]
        for thread in threads:
            thread.start()
        calls = {"rpc": lambda: client.rpc("test", "same", 1), "read": stream.read}
        for _ in range(5):
            assert in_child(lambda: wrong(calls, {"close": client.close})) == []
        done.set()
        for thread in threads:
            thread.join(WAIT)
        stream.close_write()


def anew() -> None:
    """Connect anew in a child."""
    witness = Witness()
    with rpc.serve([witness.service]) as server, rpc.connect(server.url) as client:
        assert client.rpc("test", "same", 1, WAIT) == 1

        def child() -> list[str]:
            with rpc.connect(server.url) as again:
                return [again.rpc("test", "same", "from the child", WAIT)]

        assert in_child(child) == ["from the child"]
        assert client.rpc("test", "same", 1, WAIT) == 1


if __name__ == "__main__":
    for part in (of_client, of_server, under_load, anew):
        part()
