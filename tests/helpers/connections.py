"""Give each test its connections: ``connection`` on every carrier, ``ends`` with both ends here.

Both run over the four wires on each of them, the full product; most of it in wide runs only.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

import wsmux

from . import scripted
from .carriers import EVERYWHERE, IN_PROCESS, Carrier, Ends, WsgiServers, join
from .certificates import Certificates
from .scripted import WAIT

Result = TypeVar("Result")
Join = Callable[..., Ends]
Connect = Callable[..., wsmux.Connection]
Spawn = Callable[..., "Future[Any]"]


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        call = getattr(item, "callspec", None)
        values = call.params.values() if call is not None else ()
        if any(isinstance(value, Carrier) and not value.usual for value in values):
            item.add_marker(pytest.mark.wide)


@pytest.fixture
def join_over(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Join]:
    """Return ``join_over(carrier, client=options, server=options)``, which makes both ends."""
    with ExitStack() as stack:

        def make(
            carrier: Carrier,
            client: dict[str, Any] | None = None,
            server: dict[str, Any] | None = None,
        ) -> Ends:
            directory = tmp_path_factory.mktemp("s") if carrier.name == "unix" else Path()
            joined = join(carrier, client or {}, server or {}, certificates, directory)
            return stack.enter_context(joined)

        yield make


@pytest.fixture(params=IN_PROCESS, ids=str)
def carrier(request: pytest.FixtureRequest) -> Carrier:
    """Every wire on every carrier that has both ends in this process.

    Narrow it with ``parametrize``.
    """
    chosen: Carrier = request.param
    return chosen


@pytest.fixture
def join_ends(join_over: Join, carrier: Carrier) -> Join:
    """Return ``join_ends(client=options, server=options)`` for the test's carrier."""
    return functools.partial(join_over, carrier)


@pytest.fixture
def ends(join_ends: Join) -> Ends:
    """Return a client and a server connection."""
    return join_ends()


@pytest.fixture(params=EVERYWHERE, ids=str)
def anywhere(request: pytest.FixtureRequest) -> Carrier:
    """Every wire on every carrier, those among them whose server is another process."""
    chosen: Carrier = request.param
    return chosen


@pytest.fixture
def connect(anywhere: Carrier, join_over: Join, wsgi_servers: WsgiServers) -> Iterator[Connect]:
    """Return ``connect(**options)``: a client whose peer runs ``scripted.handle``."""
    with ExitStack() as stack:

        def make(**options: Any) -> wsmux.Connection:
            if anywhere in IN_PROCESS:
                return join_over(anywhere, options, {"stream_handler": scripted.handle}).client
            url, wire = wsgi_servers.url(anywhere.name), anywhere.protocol
            client = wsmux.connect(url, protocol=wire, timeout=WAIT, **options)
            return stack.enter_context(client)

        yield make


@pytest.fixture
def connection(connect: Connect) -> wsmux.Connection:
    """Return a client whose peer runs ``scripted.handle``, in every wire over every carrier."""
    return connect()


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Return ``spawn(function, *args)``: run it in a thread of its own and return a future."""
    threads: list[threading.Thread] = []

    def start(function: Callable[..., Result], *args: Any) -> Future[Result]:
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)

        threads.append(threading.Thread(target=run, name=f"test-{function.__name__}"))
        threads[-1].start()
        return future

    yield start
    deadline = time.monotonic() + WAIT
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads)
