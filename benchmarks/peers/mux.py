"""Measure wsmux on each of its wires: a line is a stream, all of them over one WebSocket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..blocking import Blocking, Dialled
from ..peer import Peer
from ..sockets import AUTHORITY, client_context, server_context
from ..words import Line, Open, serve_line

if TYPE_CHECKING:
    import wsmux

PURE_PYTHON = "WSMUX_PURE_PYTHON_MASK"

# One for each line at a time: a thousand, and those that are still being closed.
WORKERS = 1280

# Seconds for a worker to start, one after the other, on a machine that has much else to do.
PATIENCE = 60.0

# Streams that one side may have open: the idle ones, and those that are measured.
MOST = 12_000


@dataclass
class Mux(Peer):
    """With the C masker of the websockets package, if it needs that.

    Attributes:
        tls: over TLS. watched: with a recorder of the last frames and a watch for stalls. resume:
            with connections that outlive their sockets.
    """

    tls: bool = False
    watched: bool = False
    resume: bool = False

    def check(self) -> None:
        from wsmux.protocols.masking import native_masker

        if native_masker is not ("websockets" in self.needs):
            raise RuntimeError(f"{self.name}: wsmux does not mask as promised")

    @contextmanager
    def serve(self) -> Iterator[Any]:
        """Serve lines on one address, and idle ones on another."""
        import wsmux

        def handle(stream: wsmux.Stream) -> None:
            serve_line(line_of(stream))

        with server_context(self.tls) as (context, certificate):
            serve = partial(
                wsmux.serve,
                protocols=(self.protocol or "wsmux",),
                config=self._config(max_streams=MOST, max_unaccepted=MOST, open_timeout=PATIENCE),
                ssl_context=context,
                resume=self.resume,
            )
            with (
                serve(stream_handler=handle, workers=WORKERS) as server,
                self._watching(server),
                serve(_hold) as holder,
            ):
                yield server.url, holder.url, certificate

    @contextmanager
    def connect(self, address: Any) -> Iterator[Blocking]:
        import wsmux

        url, holder, certificate = address
        connect = partial(
            wsmux.connect,
            protocol=self.protocol or "wsmux",
            ssl_context=client_context(certificate),
            config=self._config(),
            resume=self.resume,
        )

        def dial(url: str) -> Dialled:
            connection = connect(url)
            return Dialled(lambda: line_of(connection.open_stream()), connection.close)

        with connect(url) as connection, self._watching(connection):
            here, held = partial(dial, url), partial(dial, holder)
            yield Blocking(
                lambda: line_of(connection.open_stream()),
                here,
                held,
                lambda first: line_of(connection.open_stream(data=first)),
            )

    def _config(self, **fields: Any) -> wsmux.Config:
        import wsmux

        return wsmux.Config(recording=wsmux.Recording() if self.watched else None, **fields)

    def _watching(self, connections: Any) -> AbstractContextManager[object]:
        import wsmux

        return wsmux.StallWatch(connections) if self.watched else nullcontext()


def line_of(stream: wsmux.Stream) -> Line:
    def window() -> int:
        streams = stream.connection.stream_stats()
        return next(each.window for each in streams if each.id == stream.id)

    return Line(stream.write, stream.read, stream.close, window)


def _hold(connection: wsmux.Connection) -> None:
    """Serve the first stream, and accept the others, which no thread waits for."""
    import wsmux

    def serve(line: Line) -> None:
        with suppress(wsmux.ConnectionClosed, wsmux.StreamReset):  # the client has gone
            serve_line(line)

    held: list[wsmux.Stream] = []
    with suppress(wsmux.ConnectionClosed):
        first = connection.accept_stream()
        threading.Thread(target=serve, args=(line_of(first),), daemon=True).start()
        held.extend(connection)


class BesideMux(Mux):
    """Beside plain connections, in the same processes."""

    @contextmanager
    def serve(self) -> Iterator[Any]:
        with super().serve() as special, MUX.serve() as plain:
            yield special, plain

    @contextmanager
    def connect(self, address: Any) -> Iterator[Blocking]:
        special, plain = address
        with (
            MUX.connect(plain) as first,
            super().connect(special) as client,
            super().connect(special) as second,
            MUX.connect(plain) as last,
        ):
            client.compared = (client, second), (first, last)
            if self.resume:
                client.cuttable = partial(self._cuttable, special)
            yield client

    @contextmanager
    def _cuttable(self, address: Any) -> Iterator[tuple[Open, Callable[[], object]]]:
        """Yield what opens a line of a connection behind a proxy, and what resets its socket."""
        import wsmux
        from wsmux.testing import FaultProxy

        port = urlsplit(address[0]).port
        assert port is not None
        with FaultProxy(port) as proxy, wsmux.connect(proxy.url, resume=True) as connection:
            yield lambda: line_of(connection.open_stream()), proxy.reset


BY_C: dict[str, Any] = {"needs": ("websockets",), "environment": {PURE_PYTHON: None}}
MUX = Mux("wsmux", "wsmux, masking by C", **BY_C)


def _on_demand(kind: type[Mux], name: str, about: str, **more: Any) -> Mux:
    return kind(name, f"{about}, masking by C", "wsmux", on_demand=True, **{**BY_C, **more})


PEERS: list[Peer] = [
    MUX,
    Mux("wsmux-python", "wsmux, masking in Python", environment={PURE_PYTHON: "1"}),
    _on_demand(Mux, "wsmux-tls", "wsmux over TLS", needs=(*MUX.needs, *AUTHORITY), tls=True),
    _on_demand(BesideMux, "wsmux-watched", "wsmux with recorder and watchdog", watched=True),
    _on_demand(BesideMux, "wsmux-resumable", "wsmux, resumable", resume=True),
    *(
        _on_demand(Mux, f"wsmux-{wire}", f"wsmux on the wire {wire}", protocol=wire)
        for wire in ("js-ws", "yamux", "bymux")
    ),
]
