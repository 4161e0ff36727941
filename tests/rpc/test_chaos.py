"""Generators that wait, notified and cancelled at random while connections are cut: all end."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc import testing

from ..helpers.inside import workers_held
from ..helpers.rpc.procedures import WAIT
from ..helpers.waiting import wait_for

SECONDS = 1.0
CLIENTS = 3


class Restless:
    """Serve generators that wait for anything and end in every way, and count their ends."""

    def __init__(self) -> None:
        self.signals = [rpc.Signal() for _ in range(3)]
        self.silent = rpc.Signal()
        self.begun: set[int] = set()
        self.ended: Counter[int] = Counter()  # each by one thread
        self._ids = count()
        self.service = service = rpc.Service("test")
        service.rpc(name="same")(lambda ctx, init: init)
        service.subscription(name="waits")(self._waits)
        service.subscription(name="pours")(self._pours)

    def _waits(self, ctx: rpc.Context, init: Any) -> Generator[Any]:
        key = next(self._ids)
        self.begun.add(key)
        try:
            while True:
                yield key
                timeout = random.choice([None, 0.001, 0.01, 60.0])
                silent = [] if timeout is None else [self.silent, None]
                yield from ctx.wait(random.choice([*self.signals, *silent]), timeout)
                match random.randrange(100):
                    case 0:
                        raise SystemExit
                    case 1:
                        raise LookupError("by chance")
                    case 2:
                        ctx.cancel()
                    case 3:
                        return
        finally:
            self.ended[key] += 1
            if not key % 16:
                raise ValueError("in the end")

    def _pours(self, ctx: rpc.Context, init: Any) -> Iterator[int]:
        key = next(self._ids)
        self.begun.add(key)
        try:
            yield from range(random.randrange(500))
        finally:
            self.ended[key] += 1


def use(client: rpc.Client, until: float) -> None:
    """Make calls, read some of each, and leave them."""
    while time.monotonic() < until:
        with suppress(rpc.RiverError, EOFError), ExitStack() as stack:
            opened = [
                client.subscribe("test", random.choice(["waits", "pours"]), None, WAIT)
                for _ in range(random.randrange(1, 12))
            ]
            for each in opened:
                stack.callback(each.close)
            for each in opened:
                for _ in range(random.randrange(3)):
                    each.read()
                each.cancel()
            assert client.rpc("test", "same", 1, WAIT) == 1


def disturb(restless: Restless, links: list[testing.Link], done: threading.Event) -> None:
    """Notify, and now and then cut or end a session, until nobody reads any more."""
    while not done.is_set():
        random.choice(restless.signals).notify()
        time.sleep(random.choice([0, 0.001, 0.005]))
        link = random.choice(links)
        match random.randrange(100):
            case 0:
                link.cut()
            case 1:
                link.handler.end_session(link.client.client_id)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # SystemExit
@pytest.mark.parametrize("layers", [[], [lambda ctx, init, step: step()]], ids=["bare", "layered"])
def test_every_generator_ends_once_and_gives_its_worker_back(
    layers: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "wsmux.rpc")  # handlers fail by the hundred
    restless = Restless()
    options = rpc.Options(send_buffer_messages=16, ack_messages=4, worker_timeout=WAIT)
    serving: rpc.server.Serving = {
        "options": options,
        "workers": 4,
        "max_workers": 8,
        "middleware": layers,
    }
    failed: list[BaseException] = []
    until = time.monotonic() + SECONDS

    done = threading.Event()

    def run(action: Any, *arguments: Any) -> None:
        try:
            action(*arguments)
        except BaseException as error:
            failed.append(error)

    with testing.linked([restless.service], serving) as first:
        with testing.linked([restless.service], serving) as second:
            links = [first, second]
            users = [
                threading.Thread(target=run, args=(use, link.client, until))
                for link in links
                for _ in range(CLIENTS)
            ]
            disturber = threading.Thread(target=run, args=(disturb, restless, links, done))
            for thread in [*users, disturber]:
                thread.start()
            for thread in users:
                thread.join(WAIT)
            done.set()
            disturber.join(WAIT)
            assert [thread for thread in users if thread.is_alive()] == failed == []
        wait_for(lambda: workers_held(first.handler) == workers_held(second.handler) == 0)
    assert restless.begun
    assert restless.ended == Counter(restless.begun)
