"""Validate user-supplied request headers and options, before connecting.

A line break in a header would start another header, or another request. Errors show no values,
since they may be secret; nor invalid names, which may be misplaced values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..runtime.arguments import strings

__all__ = ["check_options", "header_lines"]

# RFC 9110 section 5.1, and the characters that section 5.5 excludes from values.
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

# Accepted options of websocket-client, apart from those set by this package.
OPTIONS = frozenset(
    {
        "cookie",
        "host",
        "http_no_proxy",
        "http_proxy_auth",
        "http_proxy_host",
        "http_proxy_port",
        "http_proxy_timeout",
        "origin",
        "proxy_type",
        "redirect_limit",
        "sockopt",
        "sslopt",
        "suppress_origin",
    }
)

# Those that become header values.
_VALUES = ("cookie", "host", "origin")


def header_lines(headers: Mapping[str, str] | Sequence[str] | None) -> list[str]:
    """Return additional headers as lines.

    Raises:
        TypeError: they are neither a mapping of strings nor a collection of lines.
        ValueError: a name is not an HTTP token, or a value has a character that is not allowed.
    """
    if headers is None:
        return []
    if not isinstance(headers, Mapping):
        lines = strings("headers", headers, "X-Name: value")
        for place, line in enumerate(lines):
            name, colon, value = line.partition(":")
            if not colon:
                raise ValueError(f"header {place} is not of the form 'NAME: VALUE'")
            _check(place, name, value)
        return list(lines)
    for place, (name, value) in enumerate(headers.items()):
        _check(place, name, value)
    return [f"{name}: {value}" for name, value in headers.items()]


def check_options(options: Mapping[str, Any]) -> None:
    """Validate the names of options of websocket-client, and the values that become headers.

    Raises:
        TypeError: there is no such option, or a header is not a string.
        ValueError: a header has a character that is not allowed in headers.
    """
    if unknown := set(options) - OPTIONS:
        raise TypeError(f"connect() has no option {', '.join(sorted(unknown))}")
    for name in _VALUES:
        value = options.get(name)
        if value is not None:
            _check_value(f"{name}=", value)


def _check(place: int, name: object, value: object) -> None:
    if not isinstance(name, str):
        kind = type(name).__name__
        raise TypeError(f"the name of a header must be a string, but that of {place} is {kind}")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the name of header {place} is not an HTTP token: "
            "letters, digits and hyphens without a space, such as X-Name"
        )
    _check_value(f"the value of the header {name}", value)


def _check_value(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, not {type(value).__name__}")
    if _CONTROL.search(value):
        raise ValueError(
            f"{what} has a line break or another control character, which headers cannot have"
        )
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(
            f"{what} has a character outside Latin-1, which headers cannot have: quote it"
        ) from None
