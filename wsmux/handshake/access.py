"""Check bearer tokens before a WebSocket is accepted."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..exceptions import HandshakeError
from ..runtime.arguments import strings

__all__ = ["Access", "TokenCheck", "is_loopback"]

TokenCheck = str | Collection[str] | Callable[[str], Any]


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Check the ``Authorization: Bearer`` header of a request.

    Args:
        token: a token, a collection of tokens, or a function. The function is called with the token
            and returns the identity of its holder, or true; false refuses the token, and so does
            ``PermissionError``, whose message is sent to the client, such as that the token has
            expired. ``None`` accepts every request.

    Raises:
        ValueError: a token is empty, or cannot be sent in a header.
        TypeError: it is neither a string nor a collection of strings.
    """

    def __init__(self, token: TokenCheck | None) -> None:
        self._function = token if callable(token) else None
        self._tokens: list[bytes] | None = None
        if token is not None and not callable(token):
            tokens = strings("token", [token] if isinstance(token, str) else token, "TOKEN")
            for each in tokens:
                if not each or not each.isascii() or not each.isprintable() or " " in each:
                    raise ValueError("a token must consist of visible ASCII characters")
            self._tokens = [each.encode() for each in tokens]

    def check(self, environ: Mapping[str, Any]) -> Any:
        """Return the identity of the client: the result of the function, otherwise true.

        Raises:
            HandshakeError: the token is missing or invalid, with status 401 and a sentence.
        """
        if self._function is None and self._tokens is None:
            return True
        scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise HandshakeError("a token is required: Authorization: Bearer TOKEN", 401)
        try:
            who = self._who(token)
        except PermissionError as error:
            raise HandshakeError(str(error) or "this token is refused", 401) from error
        if not who:
            raise HandshakeError("unknown token", 401)
        return who

    def _who(self, token: str) -> Any:
        if self._function is not None:
            return self._function(token)
        given, found = token.encode("utf-8", "surrogateescape"), False
        for known in self._tokens or ():
            found |= hmac.compare_digest(given, known)  # all of them, against timing attacks
        return found
