"""Offer procedures that note, for each call by its label, what its handler saw."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from wsmux import rpc

from .procedures import NUMBER, WAIT, WITH_NUMBER

__all__ = ["Note", "Notes", "Witness"]


class Note:
    """Hold what the handler of one call saw."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.requests: list[Any] = []
        self.errors: list[str] = []
        self.message = ""
        self.left = threading.Event()
        self.cleaned = threading.Event()  # what was deferred has run
        self.context: rpc.Context | None = None

    def check_lost(self, *codes: str) -> None:
        """Check that the call has ended with an error for everybody, one of ``codes`` if any."""
        assert self.cleaned.wait(WAIT)
        assert self.left.wait(WAIT)
        assert self.context is not None
        assert self.context.ended.is_set()
        (error,) = self.errors
        assert error in (codes or ("UNEXPECTED_DISCONNECT",))


class Notes(dict[str, Note]):
    """Hold a note for each label, made when a handler or its test first asks for it.

    Both may ask at once and must get the same one, for which a ``defaultdict`` does not care.
    """

    def __missing__(self, label: str) -> Note:
        return self.setdefault(label, Note())


class Witness:
    """Make the service ``test``; the init of each call is its label."""

    def __init__(self) -> None:
        self.notes = Notes()
        self.block = threading.Event()  # which handlers called ``blocks`` wait for
        self.service = service = rpc.Service("test")
        service.rpc(name="same")(lambda ctx, init: init)
        service.rpc(name="add", init=WITH_NUMBER)(lambda ctx, init: init["n"] + 1)
        service.rpc(name="waits")(self._waits)
        service.rpc(name="blocks")(self._blocks)
        service.rpc(name="__class__")(lambda ctx, init: "found by its name")
        service.upload(name="total", request=NUMBER)(self._total)
        service.upload(name="gather")(self._gather)
        service.upload(name="holds")(lambda ctx, init, requests: self._waits(ctx, init))
        service.subscription(name="count")(self._count)
        service.subscription(name="watch")(self._watch)
        service.subscription(name="pends")(self._pends)
        service.subscription(name="pours")(self._pours)
        service.stream(name="echo")(self._echo)
        service.stream(name="reads")(self._echo)

    def _enter(self, ctx: rpc.Context, label: str) -> Note:
        note = self.notes[label]
        note.context = ctx
        ctx.defer(note.cleaned.set)
        note.entered.set()
        return note

    def _waits(self, ctx: rpc.Context, init: str) -> str:
        """Answer when the call is over."""
        note = self._enter(ctx, init)
        if ctx.ended.wait(WAIT):
            note.errors.append("ended")
        note.left.set()
        return "late"

    def _blocks(self, ctx: rpc.Context, init: str) -> bool:
        """Answer when ``block`` is set, whatever becomes of the call."""
        self._enter(ctx, init)
        return self.block.wait(WAIT)

    def _total(self, ctx: rpc.Context, init: str, requests: rpc.Readable[Any]) -> Any:
        note = self._enter(ctx, init)
        try:
            return sum(requests)
        except rpc.RiverError as error:
            note.errors.append(error.code)
            note.message = error.message
            raise
        finally:
            note.left.set()

    def _count(self, ctx: rpc.Context, init: int) -> Iterator[int]:
        yield from range(init)

    def _gather(self, ctx: rpc.Context, init: str, requests: rpc.Readable[Any]) -> list[Any]:
        note = self._enter(ctx, init)
        try:
            note.requests.extend(requests)
        except rpc.RiverError as error:
            note.errors.append(error.code)
        finally:
            note.left.set()
        return note.requests

    def _pours(self, ctx: rpc.Context, init: str, responses: rpc.Writable[Any]) -> None:
        note = self._enter(ctx, init)
        try:
            for number in range(10**6):
                responses.write(number)
        except rpc.RiverError as error:
            note.errors.append(error.code)
        finally:
            note.left.set()

    def _watch(self, ctx: rpc.Context, init: str, responses: rpc.Writable[Any]) -> None:
        responses.write("first")
        self._pends(ctx, init, responses)

    def _pends(self, ctx: rpc.Context, init: str, responses: rpc.Writable[Any]) -> None:
        """Write when the call is over."""
        note = self._enter(ctx, init)
        try:
            ctx.ended.wait(WAIT)
            responses.write("late")
        except rpc.RiverError as error:
            note.errors.append(error.code)
        except TimeoutError:  # the caller's time is up, by the server's clock
            note.errors.append("timeout")
        finally:
            note.left.set()

    def _echo(
        self,
        ctx: rpc.Context,
        init: str,
        requests: rpc.Readable[Any],
        responses: rpc.Writable[Any],
    ) -> None:
        note = self._enter(ctx, init)
        try:
            for request in requests:
                note.requests.append(request)
                responses.write(request)
        except rpc.RiverError as error:
            note.errors.append(error.code)
            note.message = error.message
        except TimeoutError:
            note.errors.append("timeout")
        finally:
            note.left.set()
