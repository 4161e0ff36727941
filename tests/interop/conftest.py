"""Give the interop tests a real js-ws peer, certificates, and an end to every hang."""

from __future__ import annotations

import faulthandler
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

from ..helpers.interop.installs import Unavailable, install_environment, install_modules
from ..helpers.interop.link import HOST, WAIT, Connector, Link
from ..helpers.interop.peer_process import PeerProcess
from ..helpers.interop.river_link import MUTE, RiverLink
from ..helpers.programs import absent
from ..helpers.redis_server import RedisServer

if TYPE_CHECKING:
    from ..helpers.certificates import Certificates

TEST_LIMIT = 45.0  # seconds; the slowest scenario takes a tenth of it on two busy cores

# Of Yamux data; some peers take no more than 1 MiB, and streams interleave by frames.
LARGEST_FRAME = 64 * 1024


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
    absent(reason, "peers")


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """Return where the npm packages are installed."""
    try:
        return install_modules()
    except Unavailable as error:
        give_up(f"no peer in Node: {error}")


def environment_of(requirements: str, oldest: tuple[int, int]) -> Path:
    """Return the interpreter of the environment that has these Python packages."""
    try:
        return install_environment(requirements, oldest)
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


def serve_one(
    stack: ExitStack, greet: Callable[[wsmux.Connection], None] | None, **options: Any
) -> tuple[wsmux.Server, queue.Queue[wsmux.Connection]]:
    """Serve until the stack unwinds; return the server and where its connections come."""
    connections: queue.Queue[wsmux.Connection] = queue.Queue()
    released = threading.Event()

    def handler(connection: wsmux.Connection) -> None:
        if greet is not None:
            greet(connection)
        connections.put(connection)
        released.wait()

    server = stack.enter_context(wsmux.serve(handler, HOST, 0, **options))
    stack.callback(released.set)
    return server, connections


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
            server, connections = serve_one(
                stack, greet, protocols=("js-ws",), ssl_context=certificates.server, **options
            )
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
def python_yamux() -> Iterator[PeerProcess]:
    """Return the process that runs the Python package, for all tests."""
    interpreter = environment_of("libp2p_requirements.txt", (3, 11))
    with PeerProcess.python("yamux_peer.py", interpreter) as peer:
        yield peer


@pytest.fixture(params=["tcp", "ws"])
def carrier(request: pytest.FixtureRequest) -> str:
    """Name what carries the bytes of the connection."""
    name: str = request.param
    return name


@pytest.fixture(scope="session", params=["node", "python"])
def yamux_process(request: pytest.FixtureRequest) -> PeerProcess:
    """Return the process of each of the two peers."""
    process: PeerProcess = request.getfixturevalue(f"{request.param}_yamux")
    return process


@pytest.fixture
def mortal_peer(yamux_process: PeerProcess) -> Iterator[PeerProcess]:
    """Return a process that the test may kill or freeze."""
    with yamux_process.another() as peer:
        yield peer


@pytest.fixture(params=["peer-client", "peer-server"])
def yamux_role(request: pytest.FixtureRequest) -> str:
    """Name the role of the peer."""
    role: str = request.param
    return role


@pytest.fixture
def yamux_connector(
    yamux_role: str, carrier: str, yamux_process: PeerProcess
) -> Iterator[Connector]:
    """Return a function that makes a link, for each peer, each role and each carrier."""
    peer_is_client = yamux_role == "peer-client"
    scheme, transport = ("tcp", {"transport": "tcp"}) if carrier == "tcp" else ("ws", {})
    with ExitStack() as stack:
        stack.callback(yamux_process.call, "fresh")

        def make(
            peer: PeerProcess = yamux_process,
            node_config: dict[str, Any] | None = None,
            listen: dict[str, Any] | None = None,
            greet: Callable[[wsmux.Connection], None] | None = None,
            named: dict[str, str | None] | None = None,
            **options: Any,
        ) -> Link:
            peer.call("fresh")
            peer.uncaught.clear()
            given = {"carrier": carrier, "host": HOST, "config": node_config or {}}
            given |= named or {}  # the subprotocol, where it is not the wire's own
            if peer_is_client:
                server, connections = serve_one(
                    stack, greet, protocols=("yamux",), **transport, **options
                )
                peer.call("connect", port=server.port, **given)
                connection = connections.get(timeout=WAIT)
            else:
                port = peer.call("listen", **given, **(listen or {}))["port"]
                url = f"{scheme}://{HOST}:{port}/"
                options |= named or {}
                connection = wsmux.connect(url, protocol="yamux", **options)
                stack.callback(connection.close)
                if greet is not None:
                    greet(connection)
            peer.call("connected")
            link = Link(connection, peer, peer_is_client, carrier)
            stack.callback(finish_yamux, link)
            return link

        yield make


def finish_yamux(link: Link) -> None:
    """Close as `finish` does; what the peer received must have been what every peer takes."""
    finish(link)
    if not link.peer.alive():
        return
    received = link.peer.call("report")["received"]
    assert received["largest"] <= LARGEST_FRAME
    for frame in received["frames"]:
        assert len(frame["flags"]) <= 1, frame
        assert (frame["stream"] == 0) is (frame["type"] in ("ping", "goaway")), frame


# River


@pytest.fixture(scope="session")
def river_peer() -> Iterator[PeerProcess]:
    """Return the process that runs the Python package, for all tests."""
    interpreter = environment_of("river_requirements.txt", (3, 12))
    with PeerProcess.python("river_peer.py", interpreter) as peer:
        yield peer


@pytest.fixture
def mortal_river(river_peer: PeerProcess) -> Iterator[PeerProcess]:
    """Return a process that the test may kill or freeze."""
    with river_peer.another() as peer:
        yield peer


@pytest.fixture
def river(river_peer: PeerProcess) -> Iterator[RiverLink]:
    """Return a server, and a client that is connected to it."""
    with RiverLink(river_peer) as link:
        link.connect()
        yield link


@pytest.fixture
def cut_river(river_peer: PeerProcess) -> Iterator[RiverLink]:
    """Return the same, over connections that can be cut."""
    with RiverLink(river_peer, MUTE, proxied=True) as link:
        link.connect()
        yield link


# RMB


@pytest.fixture(scope="session")
def rmb_peer(node_modules: Path) -> Iterator[PeerProcess]:
    """Return the process that runs the npm package, for all tests."""
    with PeerProcess.node("rmb_peer.mjs", node_modules) as peer:
        yield peer


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a Redis server, for all tests."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server
