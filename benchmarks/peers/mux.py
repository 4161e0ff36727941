"""Measure wsmux on each of its wires: a line is a stream, all of them over one WebSocket."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ..blocking import Blocking, Compared, Dialled
from ..peer import Client, Line, Peer, serve_line
from ..sockets import AUTHORITY, client_context, server_context

if TYPE_CHECKING:
    import wsmux
    from wsmux.diagnostics.status import Connections

PURE_PYTHON = "WSMUX_PURE_PYTHON_MASK"

# One for each line at a time: a thousand, and those that are still being closed.
WORKERS = 1280

# Seconds for a worker to start, one after the other, on a machine that has much else to do.
PATIENCE = 60.0

# Streams that one side may have open: the idle ones, and those that are measured.
MOST = 12_000


class Mux(Peer):
    """With the C masker of the websockets package."""

    name = "wsmux"
    about = "wsmux, masking by C"
    needs: ClassVar[tuple[str, ...]] = ("websockets",)
    wire: ClassVar[str] = "wsmux"
    c_masker: ClassVar[bool] = True
    watched: ClassVar[bool] = False
    environment: ClassVar[dict[str, str | None]] = {PURE_PYTHON: None}

    def check(self) -> None:
        from wsmux.protocols.masking import native_masker

        if native_masker is not self.c_masker:
            raise RuntimeError(f"{self.name}: wsmux does not mask as promised")

    @contextmanager
    def serve(self) -> Iterator[str]:
        with self.served(None) as address:
            yield address

    @contextmanager
    def served(self, context: ssl.SSLContext | None) -> Iterator[str]:
        """Serve lines on one address, and idle ones on another; yield both."""
        import wsmux

        def handle(stream: wsmux.Stream) -> None:
            serve_line(_line(stream))

        serve = partial(
            wsmux.serve,
            protocols=(self.wire,),
            config=self._config(max_streams=MOST, max_unaccepted=MOST, open_timeout=PATIENCE),
            ssl_context=context,
        )
        with (
            serve(stream_handler=handle, workers=WORKERS) as server,
            self._watching(server),
            serve(_hold) as holder,
        ):
            yield f"{server.url} {holder.url}"

    @contextmanager
    def connect(self, address: str) -> Iterator[Client]:
        with self.connected(address, None) as client:
            yield client

    @contextmanager
    def connected(self, address: str, context: ssl.SSLContext | None) -> Iterator[Blocking]:
        """Connect to what ``served`` yields."""
        import wsmux

        url, holder = address.split(" ")

        connect = partial(
            wsmux.connect, protocol=self.wire, ssl_context=context, config=self._config()
        )

        def dial(url: str) -> Dialled:
            connection = connect(url)
            return Dialled(_opener(connection), connection.close)

        with connect(url) as connection, self._watching(connection):
            yield Blocking(
                _opener(connection),
                dial=partial(dial, url),
                hold=partial(dial, holder),
            )

    def _config(self, **fields: Any) -> wsmux.Config:
        import wsmux

        return wsmux.Config(recording=wsmux.Recording() if self.watched else None, **fields)

    def _watching(self, connections: Connections) -> AbstractContextManager[object]:
        import wsmux

        return wsmux.StallWatch(connections) if self.watched else nullcontext()


def _line(stream: wsmux.Stream) -> Line:
    def window() -> int:
        streams = stream.connection.stream_stats()
        return next(each.window for each in streams if each.id == stream.id)

    return Line(stream.write, stream.read, stream.close, window)


def _opener(connection: wsmux.Connection) -> Callable[[], Line]:
    return lambda: _line(connection.open_stream())


def _hold(connection: wsmux.Connection) -> None:
    """Serve the first stream, and accept the others, which no thread waits for."""
    import wsmux

    def serve(line: Line) -> None:
        with suppress(wsmux.ConnectionClosed):  # the client has gone
            serve_line(line)

    held: list[wsmux.Stream] = []
    with suppress(wsmux.ConnectionClosed):
        first = connection.accept_stream()
        threading.Thread(target=serve, args=(_line(first),), daemon=True).start()
        held.extend(connection)


class PureMux(Mux):
    """With the fallback masker."""

    name = "wsmux-python"
    about = "wsmux, masking in Python"
    needs = ()
    c_masker = False
    environment: ClassVar[dict[str, str | None]] = {PURE_PYTHON: "1"}


class TlsMux(Mux):
    """Over TLS."""

    name = "wsmux-tls"
    about = "wsmux over TLS, masking by C"
    base = "wsmux"
    needs = (*Mux.needs, *AUTHORITY)
    on_demand = True

    @contextmanager
    def serve(self) -> Iterator[str]:
        with server_context() as (context, certificate), self.served(context) as address:
            yield f"{certificate} {address}"

    @contextmanager
    def connect(self, address: str) -> Iterator[Client]:
        certificate, _, urls = address.partition(" ")
        with self.connected(urls, client_context(certificate)) as client:
            yield client


class WatchedMux(Mux):
    """With a recorder of the last frames and a watch for stalls at both ends."""

    name = "wsmux-watched"
    about = "wsmux with recorder and watchdog, masking by C"
    base = "wsmux"
    watched = True
    on_demand = True

    @contextmanager
    def serve(self) -> Iterator[str]:
        with self.served(None) as watched, Mux().served(None) as plain:
            yield f"{watched}|{plain}"

    @contextmanager
    def connect(self, address: str) -> Iterator[Client]:
        watched, _, plain = address.partition("|")
        with ExitStack() as stack:
            ends = [
                stack.enter_context(mux.connected(urls, None))
                for mux, urls in ((Mux(), plain), (self, watched), (self, watched), (Mux(), plain))
            ]
            client = ends[1]
            client.compared = Compared(tuple(ends[1:3]), (ends[0], ends[3]))
            yield client


class JsWsMux(Mux):
    """On the wire of npm ``@matrixai/ws``."""

    name = "wsmux-js-ws"
    about = "wsmux on the wire js-ws, masking by C"
    base = "wsmux"
    wire = protocol = "js-ws"
    on_demand = True


class YamuxMux(Mux):
    """On Yamux."""

    name = "wsmux-yamux"
    about = "wsmux on the wire yamux, masking by C"
    base = "wsmux"
    wire = protocol = "yamux"
    on_demand = True


class BymuxMux(Mux):
    """On Bymux."""

    name = "wsmux-bymux"
    about = "wsmux on the wire bymux, masking by C"
    base = "wsmux"
    wire = protocol = "bymux"
    on_demand = True


PEERS: list[Peer] = [
    *(Mux(), PureMux(), TlsMux(), WatchedMux()),
    *(JsWsMux(), YamuxMux(), BymuxMux()),
]
