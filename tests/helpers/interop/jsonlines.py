"""Hold what the Python peers have in common; jsonlines.mjs tells the form of the lines.

It is imported by the peers, in environments that have nothing of the tests, and by the tests.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

__all__ = ["Json", "answer", "describe", "emit", "from_json", "generate", "to_json"]

Json = dict[str, Any]

# Runs a command for at most so many seconds; raises TimeoutError.
Within = Callable[[float, Awaitable[Any]], Awaitable[Any]]


def emit(message: Json) -> None:
    """Print a line."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def describe(error: BaseException) -> Json:
    """Return an error as it travels; its attribute ``extra`` holds what is to travel with it."""
    while isinstance(error, BaseExceptionGroup):  # how a nursery reports a single error, too
        error = error.exceptions[0]
    described = {"name": type(error).__name__, "message": str(error)}
    if error.__cause__ is not None:
        described["cause"] = describe(error.__cause__)
    return described | getattr(error, "extra", {})


def generate(seed: str, size: int) -> bytes:
    """Return `size` bytes that depend on `seed` only, the same in every peer."""
    return hashlib.shake_256(seed.encode()).digest(size)


async def answer(peer: object, request: Json, within: Within) -> None:
    """Run the method `do_...` of a peer that a request names, and print what comes of it."""
    number, name = request.pop("id"), request.pop("cmd")
    timeout = request.pop("timeout") / 1000
    try:
        command = getattr(peer, "do_" + re.sub("[A-Z]", r"_\g<0>", name).lower(), None)
        if command is None:
            raise LookupError(f"no command {name}")
        try:
            result = await within(timeout, command(request))
        except TimeoutError:
            raise TimeoutError(f"{name} took longer than {timeout * 1000:.0f} ms") from None
        emit({"id": number, "ok": True, "result": {} if result is None else result})
    except Exception as error:
        emit({"id": number, "ok": False, "error": describe(error)})


def to_json(value: Any) -> Any:
    """Return a value in which what JSON has not is an object with one field."""
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, datetime):
        return {"$time": value.isoformat()}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    return [to_json(item) for item in value] if isinstance(value, list) else value


def from_json(value: Any) -> Any:
    """Return what `to_json` was given."""
    if isinstance(value, dict):
        if "$bytes" in value:
            return bytes.fromhex(value["$bytes"])
        if "$time" in value:
            return datetime.fromisoformat(value["$time"])
        return {key: from_json(item) for key, item in value.items()}
    return [from_json(item) for item in value] if isinstance(value, list) else value
