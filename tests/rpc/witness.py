"""Offer procedures that note, for each call by its label, what its handler saw."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from wsmux import rpc

from .offers import NUMBER, WAIT, WITH_NUMBER

__all__ = ["Note", "Witness"]


class Note:
    """Hold what the handler of one call saw."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.requests: list[Any] = []
        self.errors: list[str] = []
        self.left = threading.Event()
        self.cleaned = threading.Event()  # what was deferred has run
        self.context: rpc.Context | None = None

    def check_lost(self, code: str = "UNEXPECTED_DISCONNECT") -> None:
        """Check that the call has ended with an error for everybody."""
        assert self.cleaned.wait(WAIT)
        assert self.left.wait(WAIT)
        assert self.context is not None
        assert self.context.ended.is_set()
        assert self.errors == [code]


class Witness:
    """Make the service ``test``; the init of each call is its label."""

    def __init__(self) -> None:
        self.notes: defaultdict[str, Note] = defaultdict(Note)
        self.service = service = rpc.Service("test")
        service.rpc(name="same")(lambda ctx, init: init)
        service.rpc(name="add", init=WITH_NUMBER)(lambda ctx, init: init["n"] + 1)
        service.rpc(name="waits")(self._waits)
        service.rpc(name="__class__")(lambda ctx, init: "found by its name")
        service.upload(name="total", request=NUMBER)(self._total)
        service.upload(name="early")(lambda ctx, init, requests: "early")
        service.subscription(name="count")(self._count)
        service.subscription(name="watch")(self._watch)
        service.subscription(name="pours")(self._pours)
        service.stream(name="echo")(self._echo)

    def _enter(self, ctx: rpc.Context, label: str) -> Note:
        note = self.notes[label]
        note.context = ctx
        ctx.defer(note.cleaned.set)
        note.entered.set()
        return note

    def _waits(self, ctx: rpc.Context, init: str) -> str:
        """Answer when the call is over."""
        note = self._enter(ctx, init)
        ended = ctx.ended.wait(WAIT)
        note.errors.append("UNEXPECTED_DISCONNECT" if ended else "nothing")  # it has no reader
        note.left.set()
        return "late"

    def _total(self, ctx: rpc.Context, init: str, requests: rpc.Readable[Any]) -> Any:
        note = self._enter(ctx, init)
        try:
            for request in requests:
                note.requests.append(request)
            return sum(note.requests)
        except rpc.RiverError as error:
            note.errors.append(error.code)
            raise
        finally:
            note.left.set()

    def _count(self, ctx: rpc.Context, init: int) -> Iterator[int]:
        yield from range(init)

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
        note = self._enter(ctx, init)
        try:
            responses.write("first")
            ctx.ended.wait(WAIT)
            responses.write("late")
        except rpc.RiverError as error:
            note.errors.append(error.code)
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
        finally:
            note.left.set()
