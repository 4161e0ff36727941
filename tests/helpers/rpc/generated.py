"""Load written clients, and describe what they are written from."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__all__ = ["literal_error", "loaded", "telling_error"]

STRING = {"type": "string"}


def literal_error(code: str, **extras: Any) -> dict[str, Any]:
    properties = {"code": {"const": code, "type": "string"}, "message": STRING, **extras}
    return {"type": "object", "properties": properties, "required": ["code", "message"]}


def telling_error(code: str, extras: Any, *, always: bool = True) -> dict[str, Any]:
    """Return an error that something comes with."""
    error = literal_error(code, extras=extras)
    error["required"] += ["extras"] * always
    return error


def loaded(text: str) -> ModuleType:
    module = ModuleType("generated_client")
    sys.modules[module.__name__] = module
    exec(compile(text, "generated_client", "exec"), module.__dict__)
    return module
