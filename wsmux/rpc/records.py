"""Convert the dataclasses of a generated client to wire values and back."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from typing import (
    Any,
    ForwardRef,
    Generic,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from .errors import RiverError

__all__ = ["TypedStreamCall", "TypedSubscription", "TypedUpload", "Wire"]

Q = TypeVar("Q")
R = TypeVar("R")


class _Attribute(NamedTuple):
    name: str
    wire: str
    type: Any
    required: bool


class Wire:
    """Convert the values of one generated module.

    Args:
        namespace: the names of the module, used to resolve the types of fields.
        errors: the error classes common to all procedures.
    """

    def __init__(self, namespace: dict[str, Any], *errors: type[RiverError]) -> None:
        self._namespace = namespace
        self._known: dict[type, list[_Attribute]] = {}
        self._errors = errors
        self._declared: dict[type[RiverError], tuple[tuple[Any, ...], Any]] = {}

    @contextmanager
    def raising(self, *errors: type[RiverError]) -> Iterator[None]:
        """Convert a ``RiverError`` of the block to the one of these classes that has its code.

        An error with another code is raised unchanged, and so is one whose ``extra`` does not match
        the class.
        """
        try:
            yield
        except RiverError as error:
            typed = self._typed(error, (*errors, *self._errors))
            if typed is None:
                raise
            raise typed from None

    def _typed(self, error: RiverError, classes: tuple[type[RiverError], ...]) -> RiverError | None:
        for cls in classes:
            known = self._declared.get(cls)
            if known is None:
                hints = cls.__annotations__
                code = get_args(self._resolved(hints["code"]))
                known = self._declared[cls] = code, self._resolved(hints.get("extra", Any))
            codes, extra = known
            if error.code in codes:
                try:
                    return cls(error.code, error.message, self.read(extra, error.extra))
                except ValueError:
                    continue  # classes may share a code, and the value may match none
        return None

    def write(self, value: Any) -> Any:
        """Return a value as sent; optional fields that are ``None`` are left out."""
        if is_dataclass(value) and not isinstance(value, type):
            written = {}
            for each in self._attributes(type(value)):
                inner = getattr(value, each.name)
                if each.required or inner is not None:
                    written[each.wire] = self.write(inner)
            return written
        if isinstance(value, list | tuple):
            return [self.write(item) for item in value]
        if isinstance(value, dict):
            return {name: self.write(item) for name, item in value.items()}
        return value

    def read(self, hint: Any, value: Any) -> Any:
        """Convert a received value to its type; what does not match the type is returned unchanged.

        Fields unknown to the type are dropped.

        Raises:
            ValueError: a field is missing.
        """
        hint = self._resolved(hint)
        arguments = get_args(hint)
        if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict):
            return self._made(hint, value)
        if get_origin(hint) is list and isinstance(value, list):
            return [self.read(arguments[0], item) for item in value]
        if get_origin(hint) is dict and isinstance(value, dict):
            return {name: self.read(arguments[1], item) for name, item in value.items()}
        if get_origin(hint) in (Union, types.UnionType):
            for branch in arguments:
                if self._fits(branch, value):
                    return self.read(branch, value)
        return value

    def _made(self, cls: type, value: dict[str, Any]) -> Any:
        given = {}
        for each in self._attributes(cls):
            if each.wire in value:
                given[each.name] = self.read(each.type, value[each.wire])
            elif each.required:
                raise ValueError(f"{cls.__name__} lacks the field {each.wire!r}")
        return cls(**given)

    def _fits(self, hint: Any, value: Any) -> bool:
        """Return whether a value matches a branch of a union, by its type and its literals."""
        hint = self._resolved(hint)
        arguments = get_args(hint)
        origin = get_origin(hint)
        if origin is Literal:
            return any(value == each and type(value) is type(each) for each in arguments)
        if origin is list:
            return isinstance(value, list) and all(self._fits(arguments[0], v) for v in value[:1])
        if origin is dict:
            return isinstance(value, dict)
        if origin in (Union, types.UnionType):
            return any(self._fits(branch, value) for branch in arguments)
        if is_dataclass(hint) and isinstance(hint, type):
            return isinstance(value, dict) and self._looks_like(hint, value)
        if hint is float:
            return isinstance(value, int | float) and not isinstance(value, bool)
        if hint is int:
            return isinstance(value, int) and not isinstance(value, bool)
        plain = isinstance(hint, type) and hint in (str, bool, bytes, datetime, type(None))
        return isinstance(value, hint) if plain else hint is Any

    def _looks_like(self, cls: type, value: dict[str, Any]) -> bool:
        return all(
            self._fits(each.type, value[each.wire]) if each.wire in value else not each.required
            for each in self._attributes(cls)
        )

    def _attributes(self, cls: type) -> list[_Attribute]:
        known = self._known.get(cls)
        if known is None:
            known = self._known[cls] = [
                _Attribute(
                    name=each.name,
                    wire=each.metadata.get("wire", each.name),
                    type=self._resolved(each.type),
                    required=each.default is MISSING,
                )
                for each in fields(cls)
            ]
        return known

    def _resolved(self, hint: Any) -> Any:
        """Return the type that a string annotation of the generated module denotes."""
        while isinstance(hint, str | ForwardRef):
            text = hint if isinstance(hint, str) else hint.__forward_arg__
            hint = eval(text, self._namespace)  # our own source, never a peer's
        return type(None) if hint is None else hint


class _Call:
    """The base of all typed calls: the client's call, and the type of its responses."""

    def __init__(self, wire: Wire, hint: Any, call: Any, *errors: type[RiverError]) -> None:
        self._wire = wire
        self._hint = hint
        self._call = call
        self._errors = errors

    def _raising(self) -> AbstractContextManager[None]:
        return self._wire.raising(*self._errors)

    def cancel(self, message: str = "cancelled by client") -> None:
        """End the call on both sides; reads and writes raise ``RiverError`` with CANCEL."""
        self._call.cancel(message)

    def __enter__(self) -> Self:
        self._call.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        """Cancel the call, unless it is over."""
        return self._call.__exit__(*error)


class _Reading(_Call, Generic[R]):
    def read(self, timeout: float | None = None) -> R:
        """Return the next response; see ``Readable.read``."""
        with self._raising():
            response: R = self._wire.read(self._hint, self._call.read(timeout))
        return response

    def __iter__(self) -> Iterator[R]:
        while True:
            try:
                response = self.read()
            except EOFError:
                return
            yield response


class _Writing(_Call, Generic[Q]):
    def write(self, request: Q, timeout: float | None = None) -> None:
        """Send a request; see ``Writable.write``."""
        with self._raising():
            self._call.write(self._wire.write(request), timeout)

    def close_write(self) -> None:
        """Send the end of the requests."""
        self._call.close_write()


class TypedSubscription(_Reading[R]):
    """A ``Subscription`` whose responses are dataclasses."""

    def close(self) -> None:
        """Cancel the subscription; a client cannot end one in any other way."""
        self._call.close()


class TypedUpload(_Writing[Q], Generic[Q, R]):
    """An ``Upload`` whose requests and response are dataclasses."""

    def finish(self, timeout: float | None = None) -> R:
        """End the requests, and return the response; see ``Upload.finish``."""
        with self._raising():
            response: R = self._wire.read(self._hint, self._call.finish(timeout))
        return response


class TypedStreamCall(_Writing[Q], _Reading[R], Generic[Q, R]):
    """A ``StreamCall`` whose requests and responses are dataclasses."""
