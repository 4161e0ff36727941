"""Measure wsmux on each of its wires: a line is a stream, all of them over one WebSocket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from ..blocking import Blocking
from ..peer import Client, Line, Peer, serve_line

PURE_PYTHON = "WSMUX_PURE_PYTHON_MASK"

# One for each line at a time: a hundred, and those that are still being closed.
WORKERS = 256


class Mux(Peer):
    """With the C masker of the websockets package."""

    name = "wsmux"
    about = "wsmux, masking by C"
    needs: ClassVar[tuple[str, ...]] = ("websockets",)
    wire: ClassVar[str] = "wsmux"
    c_masker: ClassVar[bool] = True
    environment: ClassVar[dict[str, str | None]] = {PURE_PYTHON: None}

    def check(self) -> None:
        from wsmux.websocket.masking import native_masker

        if native_masker is not self.c_masker:
            raise RuntimeError(f"{self.name}: wsmux does not mask as promised")

    @contextmanager
    def serve(self) -> Iterator[str]:
        import wsmux

        def handle(stream: wsmux.Stream) -> None:
            serve_line(Line(stream.write, stream.read, stream.close))

        with wsmux.serve(stream_handler=handle, workers=WORKERS, protocols=(self.wire,)) as server:
            yield server.url

    @contextmanager
    def connect(self, address: str) -> Iterator[Client]:
        import wsmux

        with wsmux.connect(address, protocol=self.wire) as connection:

            def opener() -> Line:
                stream = connection.open_stream()
                return Line(stream.write, stream.read, stream.close)

            yield Blocking(opener)


class PureMux(Mux):
    """With the fallback masker."""

    name = "wsmux-python"
    about = "wsmux, masking in Python"
    needs = ()
    c_masker = False
    environment: ClassVar[dict[str, str | None]] = {PURE_PYTHON: "1"}


class JsWsMux(Mux):
    """On the wire of npm ``@matrixai/ws``."""

    name = "wsmux-js-ws"
    about = "wsmux on the wire js-ws, masking by C"
    base = "wsmux"
    wire = protocol = "js-ws"


class YamuxMux(Mux):
    """On Yamux."""

    name = "wsmux-yamux"
    about = "wsmux on the wire yamux, masking by C"
    base = "wsmux"
    wire = protocol = "yamux"


class BymuxMux(Mux):
    """On Bymux."""

    name = "wsmux-bymux"
    about = "wsmux on the wire bymux, masking by C"
    base = "wsmux"
    wire = protocol = "bymux"


PEERS: list[Peer] = [Mux(), PureMux(), JsWsMux(), YamuxMux(), BymuxMux()]
