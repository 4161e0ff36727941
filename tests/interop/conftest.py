"""Give the interop tests a real js-ws peer, certificates, and an end to every hang."""

from __future__ import annotations

import faulthandler
import os
import queue
import signal
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import wsmux

from .installs import Unavailable, install_environment, install_modules
from .link import WAIT, Connector, Link
from .peerprocess import PeerProcess

if TYPE_CHECKING:
    from ..certificates import Certificates

TEST_LIMIT = 45.0  # seconds; the slowest scenario takes a tenth of it on two busy cores

HOST = "127.0.0.1"


class Hang(BaseException):
    """Interrupt a test that waits for something that does not come."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that runs longer than TEST_LIMIT, with the stacks of all threads."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        with tempfile.TemporaryFile("w+") as stacks:
            faulthandler.dump_traceback(stacks)
            stacks.seek(0)
            raise Hang(stacks.read())

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, TEST_LIMIT)
    try:
        return (yield)
    except Hang as hang:
        pytest.fail(f"hung for {TEST_LIMIT:.0f} s; threads:\n{hang}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def give_up(reason: str) -> NoReturn:
    """Skip with the reason, or fail where the peers are a must."""
    if os.environ.get("WSMUX_REQUIRE_PEERS") == "1":
        pytest.fail(f"WSMUX_REQUIRE_PEERS=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """Return where the npm packages are installed."""
    try:
        return install_modules()
    except Unavailable as error:
        give_up(f"no peer in Node: {error}")


@pytest.fixture(scope="session")
def python_interpreter() -> Path:
    """Return the interpreter of the environment that has the Python packages."""
    try:
        return install_environment()
    except Unavailable as error:
        give_up(f"no peer in Python: {error}")


@pytest.fixture
def start_peer(node_modules: Path) -> Iterator[Callable[[], PeerProcess]]:
    """Return a function that starts a Node peer, which is ended after the test."""
    peers: list[PeerProcess] = []

    def start() -> PeerProcess:
        peers.append(PeerProcess.node("js_ws_peer.mjs", node_modules))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


@pytest.fixture
def as_server(
    start_peer: Callable[[], PeerProcess], certificates: Certificates
) -> Iterator[Connector]:
    """Return a function that makes a link in which wsmux is the server."""
    with ExitStack() as stack:

        def make(
            node_config: dict[str, Any] | None = None,
            greet: Callable[[wsmux.Connection], None] | None = None,
            **options: Any,
        ) -> Link:
            connections: queue.Queue[wsmux.Connection] = queue.Queue()
            released = threading.Event()

            def handler(connection: wsmux.Connection) -> None:
                if greet is not None:
                    greet(connection)
                connections.put(connection)
                released.wait()

            server = stack.enter_context(
                wsmux.serve(
                    handler,
                    HOST,
                    0,
                    protocols=("js-ws",),
                    ssl_context=certificates.server,
                    **options,
                )
            )
            stack.callback(released.set)
            node = start_peer()
            address = {"host": HOST, "port": server.port, "ca": certificates.authority.read_text()}
            node.call("connect", config=node_config or {}, **address)
            link = Link(connections.get(timeout=WAIT), node, peer_is_client=True)
            stack.callback(finish, link)
            return link

        yield make


@pytest.fixture
def as_client(
    start_peer: Callable[[], PeerProcess], certificates: Certificates
) -> Iterator[Connector]:
    """Return a function that makes a link in which wsmux is the client."""
    with ExitStack() as stack:

        def make(
            node_config: dict[str, Any] | None = None,
            listen: dict[str, Any] | None = None,
            greet: Callable[[wsmux.Connection], None] | None = None,
            **options: Any,
        ) -> Link:
            node = start_peer()
            port = node.call(
                "listen",
                host=HOST,
                key=certificates.key.read_text(),
                cert=certificates.chain.read_text(),
                config=node_config or {},
                **(listen or {}),
            )["port"]
            connection = wsmux.connect(
                f"wss://{HOST}:{port}/",
                protocol="js-ws",
                sslopt={"ca_certs": str(certificates.authority)},
                **options,
            )
            stack.callback(connection.close)
            if greet is not None:
                greet(connection)
            node.call("connected")
            link = Link(connection, node, peer_is_client=False)
            stack.callback(finish, link)
            return link

        yield make


def finish(link: Link) -> None:
    """Close the connection; nothing may have gone wrong unseen on either side."""
    link.connection.close(timeout=WAIT)
    assert link.failures == []
    if not link.uncaught_expected:
        assert link.peer.uncaught == []


@pytest.fixture(params=["node-client", "node-server"])
def connector(request: pytest.FixtureRequest) -> Connector:
    """Return the function that makes a link, for each role."""
    name = "as_server" if request.param == "node-client" else "as_client"
    made: Connector = request.getfixturevalue(name)
    return made


@pytest.fixture
def link(connector: Connector) -> Link:
    """Return a connection to Node, for each role."""
    return connector()


# Yamux


@pytest.fixture(scope="session")
def node_yamux(node_modules: Path) -> Iterator[PeerProcess]:
    """Return the process that runs the npm package, for all tests."""
    with PeerProcess.node("yamux_peer.mjs", node_modules) as peer:
        yield peer


@pytest.fixture(scope="session")
def python_yamux(python_interpreter: Path) -> Iterator[PeerProcess]:
    """Return the process that runs the Python package, for all tests."""
    with PeerProcess.python("yamux_peer.py", python_interpreter) as peer:
        yield peer


@pytest.fixture(params=["tcp", "ws"])
def carrier(request: pytest.FixtureRequest) -> str:
    """Name what carries the bytes of the connection."""
    name: str = request.param
    return name
