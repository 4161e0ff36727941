"""Check bearer tokens, and ask the application, before a WebSocket is accepted."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

from ..exceptions import HandshakeError
from ..runtime.arguments import strings
from ..runtime.logs import logger
from .request import Request

__all__ = ["Access", "Authorize", "TokenCheck", "authorized", "check_authorize", "is_loopback"]

TokenCheck = str | Collection[str] | Callable[[str], Any]

# Says who a client is: its name, true for one without a name, or false for one that is refused.
Authorize = Callable[[Request], str | bool | None]

# Characters of the name of a user, which may be made of what the client sends.
MAX_USER = 255

_log = logger("wsmux")


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
            expired; not one of the system, which has an ``errno``. A ``HandshakeError`` refuses it
            with a status of its own. Whatever else it raises is a failure of the function.
            ``None`` accepts every request.

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
            HandshakeError: the token is missing or invalid, with status 401 and a sentence, or with
                the status that the function has raised; or the function has failed, which is
                logged, with 500.
        """
        if self._function is None and self._tokens is None:
            return True
        scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise HandshakeError("a token is required: Authorization: Bearer TOKEN", 401)
        try:
            who = self._who(token)
        except HandshakeError:
            raise
        except (Exception, SystemExit) as error:  # the latter would leave the client waiting
            if isinstance(error, PermissionError) and error.errno is None:
                raise HandshakeError(str(error) or "this token is refused", 401) from error
            _log.exception("token= failed")
            raise HandshakeError("internal error", 500) from error
        if not who:
            raise HandshakeError("unknown token", 401)
        return who

    def _who(self, token: str) -> Any:
        if self._function is not None:
            try:
                return self._function(token)
            except HandshakeError as error:
                _refuse(error, "token", 401)
        given, found = token.encode("utf-8", "surrogateescape"), False
        for known in self._tokens or ():
            found |= hmac.compare_digest(given, known)  # all of them, against timing attacks
        return found


def check_authorize(authorize: object) -> None:
    """Raise the ``TypeError`` of an ``authorize=`` that is not a function."""
    if authorize is not None and not callable(authorize):
        kind = type(authorize).__name__
        raise TypeError(
            "authorize must be a function of a wsmux.Request that returns the name of the user, "
            f"True or False, not {kind}"
        )


def _refuse(error: HandshakeError, name: str, status: int) -> NoReturn:
    """Raise the refusal that a function of the application has raised, with a status.

    Args:
        error: what it has raised.
        name: the argument that the function is.
        status: if it has said none.

    Raises:
        HandshakeError: the refusal.
        ValueError: its status refuses nobody.
    """
    if error.status is None:
        raise HandshakeError(str(error), status, error.retry_after) from error
    if not 400 <= error.status <= 599:
        raise ValueError(
            f"{name}= raised a HandshakeError of status {error.status}: a refusal has one from "
            "400 to 599"
        ) from error
    raise error


def authorized(authorize: Authorize | None, request: Request) -> Request:
    """Return the request with the name of its user, if the application lets the client in.

    Raises:
        HandshakeError: it does not, with 403, or with the status that the function has raised.
        TypeError: the function has returned what may be a mistake: an object that is always true
            would let everybody in, and a proxy would be somebody else in another thread.
        ValueError: it has raised a ``HandshakeError`` with a status that refuses nobody.

    What the function raises passes.
    """
    if authorize is None:
        return request
    try:
        user = authorize(request)
    except HandshakeError as error:
        _refuse(error, "authorize", 403)
    if user is True:
        return request
    # By its type: a proxy of werkzeug says that its class is that of what it stands for.
    if user is not None and not issubclass(type(user), str | bool):
        raise TypeError(
            f"authorize= returned an object of type {type(user).__name__}: return the name of the "
            "user as a string, True for a client without a name, or False to refuse it"
        )
    if not user:
        raise HandshakeError("not allowed", 403)
    if len(user) > MAX_USER:
        raise HandshakeError(f"the name of the user is longer than {MAX_USER} characters", 403)
    return request._replace(user=user)
