"""Make and check the tokens with which twins connect to relays.

A token is three unpadded URL-safe base64 parts: header, claims and signature. The header always
names the algorithm ``RS512``, although the signature has 65 bytes like those of envelopes; it
covers the two parts before it. Stricter than the reference relay: a token is valid for at most 20
minutes with a small clock leeway, and is refused if it is not valid yet (``nbf``) or has critical
extensions (``crit``, RFC 7515 section 4.1.11), of which none is supported. A refusal for its times
includes the relay's time.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ..errors import BusError, TokenRefused
from ..twins.records import Twin
from .address import MAX_TWIN, is_text
from .keys import Identity, verify

__all__ = [
    "LEEWAY",
    "MAX_LIFE",
    "MAX_TOKEN",
    "Claims",
    "check_token",
    "make_token",
    "read_token",
]

# Maximum and default seconds of validity. Of the reference clients, npm's asks for most, 1000.
MAX_LIFE = 1200
LIFE = 300

# Seconds by which a peer's clock may differ.
LEEWAY = 10

# Maximum characters; the reference peers need about 200.
MAX_TOKEN = 4096

ALGORITHM = "RS512"


class Claims(NamedTuple):
    """Hold the claims of a token; times are Unix seconds."""

    twin: int
    session: str | None
    issued: int
    expires: int
    begins: int = 0


def make_token(
    identity: Identity, twin: int, session: str | None, now: int, life: int = LIFE
) -> str:
    """Return a token for one session of a twin, valid for ``life`` seconds from ``now``.

    Raises:
        ValueError: ``life`` is not from 1 to ``MAX_LIFE``.
    """
    if not 0 < life <= MAX_LIFE:
        raise ValueError(f"expected a token life of 1 to {MAX_LIFE} seconds, got {life}")
    claims = {"sub": twin, "sid": session, "iat": now, "exp": now + life}
    signed = f"{_encode_json({'alg': ALGORITHM})}.{_encode_json(claims)}"
    return f"{signed}.{_encode(identity.sign(signed.encode()))}"


def read_token(text: str) -> Claims:
    """Return the claims of a token without checking its signature or times.

    Raises:
        TokenRefused: status 401; the text is not a token.
    """
    return _read(text).claims


def check_token(
    text: str | None,
    now: int,
    find: Callable[[int], Twin | None],
    leeway: int = LEEWAY,
) -> Claims:
    """Return the claims of a valid token.

    Blocks only for ``find``, which is called with the twin that the token names.

    Args:
        text: the token; ``None`` if the request has none.
        now: Unix seconds.
        find: returns a twin, or ``None`` if there is none, or raises ``BusError``.
        leeway: seconds by which clocks may differ.

    Raises:
        TokenRefused: the token is invalid; has the HTTP status and the reason to answer.
    """
    if text is None:
        raise TokenRefused(400, "a token is missing: it is the whole query of the URL")
    token = _read(text)
    _check_times(token.claims, now, leeway)
    try:
        twin = find(token.claims.twin)
    except BusError as failure:
        raise TokenRefused(500, f"the twin cannot be looked up: {failure.message}") from failure
    if twin is None:
        raise TokenRefused(401, f"there is no twin {token.claims.twin}")
    if token.algorithm != ALGORITHM:
        raise TokenRefused(401, f"the algorithm of a token must be {ALGORITHM}")
    try:
        valid = verify(twin.account, token.signed, token.signature)
    except ImportError as failure:
        raise TokenRefused(500, str(failure)) from failure
    if not valid:
        text = f"the signature is not of the account of twin {twin.id}"
        raise TokenRefused(401, f"{text}: check the secret, the number and the key type")
    return token.claims


class _Token(NamedTuple):
    claims: Claims
    algorithm: Any
    signed: bytes
    signature: bytes


def _read(text: str) -> _Token:
    if len(text) > MAX_TOKEN:
        raise TokenRefused(401, f"a token has at most {MAX_TOKEN} characters, not {len(text)}")
    parts = text.split(".")
    if len(parts) != 3:
        raise TokenRefused(401, f"a token has 3 parts separated by dots, not {len(parts)}")
    header, claims = _decode_json("header", parts[0]), _decode_json("claims", parts[1])
    if header.get("typ") not in (None, "JWT"):
        raise TokenRefused(401, "the typ of a token must be JWT or absent")
    if "crit" in header:
        raise TokenRefused(401, "the token has critical extensions (crit), which are not supported")
    signed = f"{parts[0]}.{parts[1]}".encode()
    return _Token(_read_claims(claims), header.get("alg"), signed, _decode("signature", parts[2]))


def _read_claims(claims: dict[str, Any]) -> Claims:
    for name in ("sub", "iat", "exp", "nbf"):
        value = claims.get(name, 0 if name == "nbf" else None)
        if type(value) is not int or value < 0:
            raise TokenRefused(401, f"the claim {name} of a token must be a whole number")
    session = claims.get("sid")
    if session is not None and not (isinstance(session, str) and is_text(session)):
        raise TokenRefused(401, "the claim sid of a token must be valid Unicode, null or absent")
    if not 0 < claims["sub"] <= MAX_TWIN:
        raise TokenRefused(401, f"the claim sub of a token must be a twin from 1 to {MAX_TWIN}")
    return Claims(claims["sub"], session, claims["iat"], claims["exp"], claims.get("nbf", 0))


def _check_times(claims: Claims, now: int, leeway: int) -> None:
    """Refuse an expired, not yet valid or too long-lived token; ``iat`` is ignored."""
    if now > claims.expires + leeway:
        problem = f"the token expired {now - claims.expires} s ago"
    elif claims.begins > now + leeway:
        problem = "the token is not valid yet"
    elif claims.expires > now + MAX_LIFE + leeway:
        problem = f"the token is valid for longer than {MAX_LIFE} s"
    else:
        return
    clock = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    raise TokenRefused(401, f"{problem}; the relay's clock says {clock} ({now}): compare yours")


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _encode_json(value: dict[str, Any]) -> str:
    return _encode(json.dumps(value, separators=(",", ":")).encode())


def _decode(name: str, text: str) -> bytes:
    """Decode a part of a token; each has only one valid encoding."""
    try:
        data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except ValueError:
        data = b""
    if _encode(data) != text:
        raise TokenRefused(401, f"the {name} of a token must be URL-safe base64 without padding")
    return data


def _decode_json(name: str, text: str) -> dict[str, Any]:
    data = _decode(name, text)
    try:
        value = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as failure:
        raise TokenRefused(401, f"the {name} of a token must be JSON") from failure
    if not isinstance(value, dict):
        raise TokenRefused(401, f"the {name} of a token must be a JSON object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate names, since parsers differ on which one counts."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is listed twice in an object")
    return found
