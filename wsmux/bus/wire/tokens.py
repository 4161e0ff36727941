"""Make and check the tokens with which twins connect to relays.

A token is three unpadded URL-safe base64 parts: header, claims and signature. The header names the
algorithm ``RS512``, whatever the signature is: it has 65 bytes, as those of envelopes, and covers
the two parts before it. Departures from the known relay: a token lives 20 minutes at most, clocks
may differ by some seconds, a refusal for time tells the relay's, and a token that says what must be
understood (``crit``, RFC 7515 section 4.1.11), which is nothing here, or that it is not valid yet
(``nbf``), is refused.
"""

from __future__ import annotations

import json
import re
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
    "redact",
]

# Seconds of life: of those that the known peers make, npm's are the longest, with 1000.
MAX_LIFE = 1200
LIFE = 300

# Seconds by which a peer's clock may be behind or ahead.
LEEWAY = 10

# Characters; the known peers need about 200.
MAX_TOKEN = 4096

ALGORITHM = "RS512"

_QUERY = re.compile(r"\?[^\s\"'<>#]+")
_BEARER = re.compile(r"(?i)(bearer\s+)[^\s\"',;]+")
# A first part that starts as JSON, in base64.
_TOKEN = re.compile(r"ey[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_=-]*)?")
_HIDDEN = "<redacted>"


class Claims(NamedTuple):
    """Hold what a token says; times are Unix seconds."""

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
        ValueError: the life is not from 1 second to ``MAX_LIFE``.
    """
    if not 0 < life <= MAX_LIFE:
        raise ValueError(f"a token lives from 1 to {MAX_LIFE} seconds, not {life}")
    claims = {"sub": twin, "sid": session, "iat": now, "exp": now + life}
    signed = f"{_encode_json({'alg': ALGORITHM})}.{_encode_json(claims)}"
    return f"{signed}.{_encode(identity.sign(signed.encode()))}"


def read_token(text: str) -> Claims:
    """Return what a token says; neither its signature nor its times are looked at.

    Raises:
        TokenRefused: status 401; it is no token.
    """
    return _read(text).claims


def check_token(
    text: str | None,
    now: int,
    find: Callable[[int], Twin | None],
    leeway: int = LEEWAY,
) -> Claims:
    """Return what a token says, once it is found to be valid.

    Blocks only as ``find`` does, which is asked for the twin that the token names.

    Args:
        text: the token; ``None`` if the request has none.
        now: Unix seconds.
        find: returns a twin, or ``None`` if there is none, or raises ``BusError``.
        leeway: seconds by which clocks may differ.

    Raises:
        TokenRefused: with the status and the reason to answer.
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
        raise TokenRefused(401, f"the algorithm of a token is {ALGORITHM}")
    try:
        valid = verify(twin.account, token.signed, token.signature)
    except ImportError as failure:
        raise TokenRefused(500, str(failure)) from failure
    if not valid:
        raise TokenRefused(401, f"the signature is not of the account of twin {twin.id}")
    return token.claims


def redact(text: str) -> str:
    """Return a text without the tokens in it, for logs; queries of URLs go with them."""
    for pattern, instead in (
        (_QUERY, f"?{_HIDDEN}"),
        (_BEARER, rf"\g<1>{_HIDDEN}"),
        (_TOKEN, _HIDDEN),
    ):
        text = pattern.sub(instead, text)
    return text


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
        raise TokenRefused(401, f"a token has 3 parts with points between them, not {len(parts)}")
    header, claims = _decode_json("header", parts[0]), _decode_json("claims", parts[1])
    if header.get("typ") not in (None, "JWT"):
        raise TokenRefused(401, "the type of a token is JWT, or left out")
    if "crit" in header:
        raise TokenRefused(401, "the token has critical extensions (crit), which are not supported")
    signed = f"{parts[0]}.{parts[1]}".encode()
    return _Token(_read_claims(claims), header.get("alg"), signed, _decode("signature", parts[2]))


def _read_claims(claims: dict[str, Any]) -> Claims:
    for name in ("sub", "iat", "exp", "nbf"):
        value = claims.get(name, 0 if name == "nbf" else None)
        if type(value) is not int or value < 0:
            raise TokenRefused(401, f"the claim {name} of a token is a whole number")
    session = claims.get("sid")
    if session is not None and not (isinstance(session, str) and is_text(session)):
        raise TokenRefused(401, "the claim sid of a token is whole text, null or left out")
    if not 0 < claims["sub"] <= MAX_TWIN:
        raise TokenRefused(401, f"the claim sub of a token is a twin from 1 to {MAX_TWIN}")
    return Claims(claims["sub"], session, claims["iat"], claims["exp"], claims.get("nbf", 0))


def _check_times(claims: Claims, now: int, leeway: int) -> None:
    """Refuse what is expired, or valid for too long; when it was issued does not count."""
    if now > claims.expires + leeway:
        problem = f"the token expired {now - claims.expires} s ago"
    elif claims.begins > now + leeway:
        problem = "the token is not valid yet"
    elif claims.expires > now + MAX_LIFE + leeway:
        problem = f"a token lives for {MAX_LIFE} s at most, and this one longer"
    else:
        return
    clock = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    raise TokenRefused(401, f"{problem}; the relay's clock says {clock} ({now}): compare yours")


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _encode_json(value: dict[str, Any]) -> str:
    return _encode(json.dumps(value, separators=(",", ":")).encode())


def _decode(name: str, text: str) -> bytes:
    """Return the bytes of a part, which has one spelling only."""
    try:
        data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except ValueError:
        data = b""
    if _encode(data) != text:
        raise TokenRefused(401, f"the {name} of a token is URL-safe base64 without padding")
    return data


def _decode_json(name: str, text: str) -> dict[str, Any]:
    data = _decode(name, text)
    try:
        value = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as failure:
        raise TokenRefused(401, f"the {name} of a token is JSON") from failure
    if not isinstance(value, dict):
        raise TokenRefused(401, f"the {name} of a token is a JSON object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that is listed twice: readers would differ on which counts."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is listed twice in an object")
    return found
