"""A token opens one session for some minutes; every other text is refused with its reason."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.bus.errors import TokenRefused, TwinsUnavailable
from wsmux.bus.twins.records import Twin
from wsmux.bus.wire.tokens import (
    LEEWAY,
    MAX_LIFE,
    MAX_TOKEN,
    Claims,
    check_token,
    make_token,
    read_token,
)

from ...helpers.bus.captured import NOW, TWINS, identity
from ...helpers.tables import each_case

CAROL = identity("carol")
HEADER: dict[str, Any] = {"alg": "RS512"}
CLAIMS: dict[str, Any] = {"sub": 3, "sid": None, "iat": NOW, "exp": NOW + 300}


def part(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def token(header: Any = HEADER, claims: Any = CLAIMS) -> str:
    """Return what carol signed, whatever it is."""
    signed = f"{part(header)}.{part(claims)}"
    return f"{signed}.{part(CAROL.sign(signed.encode()))}"


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in CLAIMS.items() if key != name}


GOOD = token()
HEAD, BODY, SIGNATURE = GOOD.split(".")

# 65 bytes leave two bits of the last character, which must be 0.
LEFT_OVER = chr(ord(SIGNATURE[-1]) + 1)

MALFORMED = {
    "nothing": "",
    "a point": ".",
    "two points": "..",
    "three points": "...",
    "a space before": f" {GOOD}",
    "a line end after": f"{GOOD}\n",
    "a name before": f"token={GOOD}",
    "the mark of a query": f"?{GOOD}",
    "the alphabet of plain base64": f"{HEAD}.{BODY}.{SIGNATURE[:-1]}+",
    "padding in the header": f"{HEAD}=.{BODY}.{SIGNATURE}",
    "padding in the claims": f"{HEAD}.{BODY}=.{SIGNATURE}",
    "bits left over in the signature": f"{HEAD}.{BODY}.{SIGNATURE[:-1]}{LEFT_OVER}",
    "one character of base64": f"{HEAD}.{BODY}.A",
    "letters beyond ASCII": f"{HEAD}.{BODY}.é",
    "percent signs": GOOD.replace(".", "%2E"),
    "no header": f".{BODY}.{SIGNATURE}",
    "no claims": f"{HEAD}..{SIGNATURE}",
    "a header that is text": token("RS512"),
    "a header that is a list": token(["RS512"]),
    "a header that is null": token(None),
    "a header that is no JSON": token(b"{alg:RS512}"),
    "a header that is no UTF-8": token(b'{"alg":"\xff"}'),
    "a header with a name twice": token(b'{"alg":"none","alg":"RS512"}'),
    "a type that is a number": token({**HEADER, "typ": 1}),
    "a type in small letters": token({**HEADER, "typ": "jwt"}),
    "something to be understood": token({**HEADER, "crit": ["exp"], "exp": 1}),
    "nothing to be understood": token({**HEADER, "crit": []}),
    "nbf text": token(claims={**CLAIMS, "nbf": str(NOW)}),
    "nbf null": token(claims={**CLAIMS, "nbf": None}),
    "nbf a fraction": token(claims={**CLAIMS, "nbf": NOW + 0.5}),
    "claims that are a list": token(claims=[CLAIMS]),
    "claims that are a number": token(claims=3),
    "claims that are no JSON": token(claims=b"{"),
    "claims with a comma too many": token(claims=b'{"sub":3,}'),
    "claims with a name twice": token(claims=json.dumps(CLAIMS)[:-1].encode() + b',"sub":1}'),
    "claims nested without end": f"{HEAD}.{part(b'[' * 2500)}.{SIGNATURE}",
    "no sub": token(claims=without("sub")),
    "no iat": token(claims=without("iat")),
    "no exp": token(claims=without("exp")),
    "sub null": token(claims={**CLAIMS, "sub": None}),
    "sub true": token(claims={**CLAIMS, "sub": True}),
    "sub 0": token(claims={**CLAIMS, "sub": 0}),
    "sub a fraction": token(claims={**CLAIMS, "sub": 3.0}),
    "sub a list": token(claims={**CLAIMS, "sub": [3]}),
    "sub beyond 32 bits": token(claims={**CLAIMS, "sub": 2**32 + 3}),
    "iat negative": token(claims={**CLAIMS, "iat": -1}),
    "iat text": token(claims={**CLAIMS, "iat": str(NOW)}),
    "exp a fraction": token(claims={**CLAIMS, "exp": NOW + 300.5}),
    "exp text": token(claims={**CLAIMS, "exp": str(NOW + 300)}),
    "exp not a number": token(claims=b'{"sub":3,"iat":0,"exp":NaN}'),
    "exp infinite": token(claims=b'{"sub":3,"iat":0,"exp":Infinity}'),
    "sid a number": token(claims={**CLAIMS, "sid": 5}),
    "sid false": token(claims={**CLAIMS, "sid": False}),
    "sid a list": token(claims={**CLAIMS, "sid": []}),
    "sid with half a character": token(claims={**CLAIMS, "sid": "a\ud800"}),
    "sid with the other half": token(claims={**CLAIMS, "sid": "\udfff"}),
    "sid with halves the wrong way round": token(claims={**CLAIMS, "sid": "\udc00\ud800"}),
    "longer than any": "a" * (MAX_TOKEN + 1),
    "signed, and longer than any": token(claims={**CLAIMS, "x": "x" * MAX_TOKEN}),
}
SPACED = part(json.dumps(CLAIMS, indent=1).encode())
UNTRUE = {
    "a session changed": f"{HEAD}.{part({**CLAIMS, 'sid': 's'})}.{SIGNATURE}",
    "a twin changed": f"{HEAD}.{part({**CLAIMS, 'sub': 1})}.{SIGNATURE}",
    "an end changed": f"{HEAD}.{part({**CLAIMS, 'exp': NOW + 301})}.{SIGNATURE}",
    "a header changed": f"{part({**HEADER, 'typ': 'JWT'})}.{BODY}.{SIGNATURE}",
    "spaces added to the claims": f"{HEAD}.{SPACED}.{SIGNATURE}",
    "no signature": f"{HEAD}.{BODY}.",
    "the signature of an envelope's digest": f"{HEAD}.{BODY}.{part(CAROL.sign(bytes(16)))}",
    "a signature without its scheme": f"{HEAD}.{BODY}.{part(CAROL.sign(GOOD.encode())[1:])}",
    "no algorithm": token({}),
    "an algorithm that is null": token({"alg": None}),
    "an algorithm in small letters": token({"alg": "rs512"}),
    "an algorithm that fits the key": token({"alg": "EdDSA"}),
    "no algorithm by name": token({"alg": "none"}),
}


@each_case
@pytest.mark.parametrize("why", MALFORMED)
def test_what_is_no_token_is_refused(why: str) -> None:
    with pytest.raises(TokenRefused) as refused:
        read_token(MALFORMED[why])
    assert refused.value.status == 401


@each_case
@pytest.mark.parametrize("why", MALFORMED)
def test_nobody_is_looked_up_for_what_is_no_token(why: str) -> None:
    asked: list[int] = []
    with pytest.raises(TokenRefused):
        check_token(MALFORMED[why], NOW, lambda twin: asked.append(twin))  # type: ignore[func-returns-value]
    assert not asked


@each_case
@pytest.mark.parametrize("why", UNTRUE)
def test_a_token_that_the_twin_did_not_sign_is_refused(why: str) -> None:
    assert read_token(UNTRUE[why]).issued == NOW
    with pytest.raises(TokenRefused, match=r"the signature is not|the algorithm of") as refused:
        check_token(UNTRUE[why], NOW, TWINS.get)
    assert refused.value.status == 401


@pytest.mark.parametrize("name", ["alice", "bob", "erin"])
def test_a_token_opens_no_other_twin(name: str) -> None:
    with pytest.raises(TokenRefused, match="not of the account of twin 3"):
        check_token(make_token(identity(name), 3, None, NOW), NOW, TWINS.get)


def test_a_missing_token_is_a_bad_request() -> None:
    with pytest.raises(TokenRefused, match="the whole query of the URL") as refused:
        check_token(None, NOW, TWINS.get)
    assert refused.value.status == 400


def test_a_look_up_that_fails_is_the_relay_s_failure() -> None:
    def find(twin: int) -> Twin | None:
        raise TwinsUnavailable("none of a, b answered")

    with pytest.raises(TokenRefused, match="cannot be looked up: none of a, b") as refused:
        check_token(GOOD, NOW, find)
    assert refused.value.status == 500


def test_an_unknown_twin_is_refused() -> None:
    with pytest.raises(TokenRefused, match="there is no twin 3") as refused:
        check_token(GOOD, NOW, {}.get)
    assert refused.value.status == 401


@pytest.mark.parametrize(
    ("expires", "taken"),
    [
        (NOW, True),
        (NOW - LEEWAY, True),
        (NOW - LEEWAY - 1, False),
        (0, False),
        (NOW + MAX_LIFE + LEEWAY, True),
        (NOW + MAX_LIFE + LEEWAY + 1, False),
        (2**64, False),
        (10**1000, False),
    ],
)
def test_a_token_is_taken_within_its_time_and_some_seconds(expires: int, taken: bool) -> None:
    status = 101
    try:
        check_token(token(claims={**CLAIMS, "exp": expires}), NOW, TWINS.get)
    except TokenRefused as refused:
        status = refused.status
    assert status == (101 if taken else 401)


@pytest.mark.parametrize(
    ("begins", "taken"),
    [(0, True), (NOW + LEEWAY, True), (NOW + LEEWAY + 1, False), (10**1000, False)],
)
def test_a_token_is_not_taken_before_it_is_valid(begins: int, taken: bool) -> None:
    made = token(claims={**CLAIMS, "nbf": begins})
    if taken:
        assert check_token(made, NOW, TWINS.get).begins == begins
    else:
        with pytest.raises(TokenRefused, match="not valid yet"):
            check_token(made, NOW, TWINS.get)


@pytest.mark.parametrize("expires", [NOW - 60, NOW + 10**9])
def test_a_refusal_for_time_tells_the_relay_s(expires: int) -> None:
    with pytest.raises(TokenRefused) as refused:
        check_token(token(claims={**CLAIMS, "exp": expires}), NOW, TWINS.get)
    assert "2023-11-14T22:13:20Z (1700000000): compare yours" in refused.value.reason


@each_case
@pytest.mark.parametrize("why", [*MALFORMED, *UNTRUE])
def test_a_refusal_is_one_line_without_the_token(why: str) -> None:
    text = {**MALFORMED, **UNTRUE}[why]
    with pytest.raises(TokenRefused) as refused:
        check_token(text, NOW, TWINS.get)
    assert refused.value.reason.isprintable()
    assert len(text) < 40 or text[:40] not in refused.value.reason


@each_case
@pytest.mark.parametrize("name", ["alice", "carol"])
@pytest.mark.parametrize("session", [None, "", "s1", "séance", "a:b", "\0", 'a"b'])
def test_a_token_says_what_it_was_made_for(name: str, session: str | None) -> None:
    twin = 1 if name == "alice" else 3
    made = make_token(identity(name), twin, session, NOW, 60)
    assert check_token(made, NOW, TWINS.get) == Claims(twin, session, NOW, NOW + 60)


def test_a_token_has_no_type_as_that_of_the_known_gateway() -> None:
    assert make_token(CAROL, 3, None, NOW).split(".")[0] == "eyJhbGciOiJSUzUxMiJ9"


@pytest.mark.parametrize("life", [-1, 0, MAX_LIFE + 1, 10**9])
def test_no_token_is_made_for_longer_than_relays_take(life: int) -> None:
    with pytest.raises(ValueError, match="a token life of 1 to 1200 seconds"):
        make_token(CAROL, 3, None, NOW, life)


def test_the_longest_life_is_taken() -> None:
    assert check_token(make_token(CAROL, 3, None, NOW, MAX_LIFE), NOW, TWINS.get).twin == 3


@given(st.text(max_size=80) | st.from_regex(r"([A-Za-z0-9_-]{0,12}\.){1,3}", fullmatch=True))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(TokenRefused):
        check_token(text, NOW, TWINS.get)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
some_claims = st.dictionaries(st.sampled_from(["sub", "sid", "iat", "exp", "x"]), json_values)


@given(some_claims, json_values)
def test_any_signed_claims_are_read_or_refused(claims: dict[str, Any], header: Any) -> None:
    with suppress(TokenRefused):
        read_token(token(claims={**CLAIMS, **claims}))
    with suppress(TokenRefused):
        check_token(token(header), NOW, TWINS.get)
