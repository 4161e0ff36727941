"""Measure wsmux: a line is a stream, all of them over one WebSocket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from ..peer import Line, Open, Peer, serve_line

PURE_PYTHON = "WSMUX_PURE_PYTHON_MASK"

# One for each line at a time: a hundred, and those that are still being closed.
WORKERS = 256


class Mux(Peer):
    """With the C masker of the websockets package."""

    name = "wsmux"
    about = "wsmux, masking by C"
    needs: ClassVar[tuple[str, ...]] = ("websockets",)
    native: ClassVar[bool] = True
    environment: ClassVar[dict[str, str | None]] = {PURE_PYTHON: None}

    def check(self) -> None:
        from wsmux.websocket.masking import native_masker

        if native_masker is not self.native:
            raise RuntimeError(f"{self.name}: wsmux does not mask as promised")

    @contextmanager
    def serve(self) -> Iterator[str]:
        import wsmux

        def handle(stream: wsmux.Stream) -> None:
            serve_line(Line(stream.write, stream.read, stream.close))

        with wsmux.serve(stream_handler=handle, workers=WORKERS) as server:
            yield server.url

    @contextmanager
    def connect(self, address: str) -> Iterator[Open]:
        import wsmux

        with wsmux.connect(address) as connection:

            def opener() -> Line:
                stream = connection.open_stream()
                return Line(stream.write, stream.read, stream.close)

            yield opener


class PureMux(Mux):
    """With the fallback masker."""

    name = "wsmux-python"
    about = "wsmux, masking in Python"
    needs = ()
    native = False
    environment: ClassVar[dict[str, str | None]] = {PURE_PYTHON: "1"}


PEERS: list[Peer] = [Mux(), PureMux()]
