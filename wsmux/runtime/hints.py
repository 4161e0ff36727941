"""Build error messages for common mistakes, each with a way to fix it."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

__all__ = [
    "check_characters",
    "check_url",
    "field_hints",
    "how_to_install",
    "not_connected",
    "tls_failed",
    "wrong_url",
]

Args = ParamSpec("Args")
Result = TypeVar("Result")

# The scheme that was probably meant by that of a web page.
_MEANT = {"http": "ws", "https": "wss"}

# Characters that would end a URL in a request line, and those that cannot be encoded.
_NOT_IN_URLS = re.compile(r"[\x00-\x20\x7f\ud800-\udfff]")

# What OpenSSL reports when the answer is not TLS, but for example HTTP.
_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG"}

_CHECKS = {
    errno.ECONNREFUSED: "is the server running, and is that its port?",
    errno.EHOSTUNREACH: "is the host right, and the network up?",
    errno.ENETUNREACH: "is the host right, and the network up?",
    errno.ENOENT: "is the server running, and is that its path?",
}


def how_to_install(extra: str) -> str:
    """Return how to install an extra of this package, from the registry and from a checkout."""
    return f"pip install 'wsmux-streams[{extra}]' (from a checkout: pip install '.[{extra}]')"


def wrong_url(url: object, *schemes: str) -> str:
    """Return what is wrong with a URL that has none of these schemes, or no host.

    >>> wrong_url("host:1", "ws", "wss", "tcp")
    "expected a ws://, wss:// or tcp:// URL, got 'host:1', which has no scheme"
    >>> wrong_url("https://host", "ws", "wss")
    "expected a ws:// or wss:// URL, got 'https://host': write wss:// instead of https://"
    """
    *most, last = (f"{scheme}://" for scheme in schemes)
    expected = f"{', '.join(most)} or {last}" if most else last
    text = f"expected a {expected} URL, got {url!r}"
    if not isinstance(url, str):
        return text
    scheme, mark, _ = url.partition("://")
    if not mark:
        return f"{text}, which has no scheme"
    meant = _MEANT.get(scheme.lower())
    if meant in schemes:
        return f"{text}: write {meant}:// instead of {scheme}://"
    if scheme.lower() in schemes:
        return f"{text}, which has no host"
    return text


def check_characters(url: str, shown: str | None = None) -> None:
    """Refuse a URL with a character that would end it in a request line.

    Args:
        url: the URL to check.
        shown: the text to show in the error instead, if the URL may contain a secret.

    Raises:
        ValueError: it has such a character.
    """
    if _NOT_IN_URLS.search(url):
        told = url if shown is None else shown
        raise ValueError(
            f"{told!r} has a character that URLs cannot have, such as a space or a line "
            "break: percent-encode it, a space as %20"
        )


def check_url(url: str, *schemes: str) -> str:
    """Return a URL with its scheme in lower case.

    Raises:
        ValueError: it has none of these schemes, no host, an invalid port, or a character that URLs
            cannot have.
    """
    if not isinstance(url, str) or url.partition("://")[0].lower() not in schemes:
        raise ValueError(wrong_url(url, *schemes))
    check_characters(url)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r}: {error}") from None
    if not parts.hostname:
        raise ValueError(wrong_url(url, *schemes))
    return f"{parts.scheme}{url[len(parts.scheme) :]}"


def not_connected(url: str, error: OSError) -> OSError:
    """Return an error with the same errno, and thus of the same class, that names the URL."""
    address = getattr(error, "remote_ip", "")  # of the last attempt; a proxy's, if there is one
    tried = f" ({address})" if address and address not in url else ""
    text = f"cannot connect to {url}{tried}: {error.strerror or error}"
    if error.errno is None:
        return OSError(text)
    check = _CHECKS.get(error.errno)
    return OSError(error.errno, f"{text}; {check}" if check else text)


def tls_failed(url: str, error: Exception) -> str:
    """Return why TLS failed, with advice if the answer was not TLS."""
    text = f"TLS with {url} failed: {error}"
    if getattr(error, "reason", None) not in _NO_TLS:
        return text
    if urlsplit(url).scheme == "wss":
        return f"{text}; does that port speak TLS? If not, write ws:// instead of wss://"
    return f"{text}; does that port speak TLS? If not, leave out ssl_context="


def field_hints(
    settings: type[Any], given_as: str
) -> Callable[[Callable[Args, Result]], Callable[Args, Result]]:
    """Return a decorator whose errors for unknown arguments name the class with such a field.

    Args:
        settings: the dataclass.
        given_as: the argument that takes an instance of it.
    """
    known = {field.name for field in fields(settings)}

    def decorate(function: Callable[Args, Result]) -> Callable[Args, Result]:
        astray = known - set(signature(function).parameters)
        name = function.__qualname__.removesuffix(".__init__")

        @wraps(function)
        def hinting(*args: Args.args, **kwargs: Args.kwargs) -> Result:
            if not astray.isdisjoint(kwargs):
                wrong = [each for each in kwargs if each in astray]
                held = ", ".join(f"{each}=..." for each in wrong)
                raise TypeError(
                    f"{name}() has no argument {', '.join(wrong)}: "
                    f"pass {given_as}={settings.__name__}({held})"
                )
            return function(*args, **kwargs)

        return hinting

    return decorate
