"""A payload is read by the twin it was meant for, whole, or not at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.bus.errors import BusError
from wsmux.bus.wire import e2e
from wsmux.bus.wire.e2e import Box

from ...helpers.tables import each_case

ANN, BEN, EVE = Box(b"\1" * 32), Box(b"\2" * 32), Box(b"\3" * 32)
SEALED = ANN.seal(b"text", BEN.public)

# The order of secp256k1, the first number that is no private key.
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141

BAD_KEYS = {
    "nothing": b"",
    "one byte": b"\x02",
    "32 bytes": ANN.public[1:],
    "34 bytes": ANN.public + b"\0",
    "a point that is not compressed": b"\x04" + bytes(64),
    "an x that is not on the curve": b"\x02" + b"\0" * 31 + b"\x05",
    "an x of 0": b"\x02" + bytes(32),
    "an x beyond the field": b"\x02" + b"\xff" * 32,
    "the point at infinity": bytes(33),
    "a first byte of 4": b"\x04" + ANN.public[1:],
    "a first byte of 1": b"\x01" + ANN.public[1:],
}
BAD_CIPHERS = {
    "nothing": b"",
    "a nonce": SEALED[:12],
    "27 bytes": SEALED[:27],
    "28 bytes": SEALED[:28],
    "the last byte left out": SEALED[:-1],
    "a byte more": SEALED + b"\0",
    "another nonce": bytes(12) + SEALED[12:],
    "another tag": SEALED[:-16] + bytes(16),
    "zeros": bytes(100),
    "what others were sent": EVE.seal(b"text", BEN.public),
    "what was sent to others": ANN.seal(b"text", EVE.public),
}
BAD_SECRETS = [b"", bytes(31), bytes(33), bytes(32), ORDER.to_bytes(32, "big"), b"\xff" * 32]


@each_case
@pytest.mark.parametrize("why", BAD_CIPHERS)
def test_a_bad_cipher_is_refused(why: str) -> None:
    with pytest.raises(BusError, match="at least 28 bytes|was changed") as refused:
        BEN.open(BAD_CIPHERS[why], ANN.public)
    assert refused.value.code == 106


@each_case
@pytest.mark.parametrize("why", BAD_KEYS)
def test_nothing_is_encrypted_for_a_bad_key(why: str) -> None:
    with pytest.raises(BusError, match="33 bytes|not a point of secp256k1") as refused:
        ANN.seal(b"text", BAD_KEYS[why])
    assert refused.value.code == 106


@each_case
@pytest.mark.parametrize("why", BAD_KEYS)
def test_nothing_is_read_from_a_bad_key(why: str) -> None:
    with pytest.raises(BusError, match="33 bytes|not a point of secp256k1") as refused:
        BEN.open(SEALED, BAD_KEYS[why])
    assert refused.value.code == 106


@pytest.mark.parametrize(
    "secret", BAD_SECRETS, ids=lambda secret: f"{secret[:1].hex()}{len(secret)}"
)
def test_a_bad_secret_is_refused(secret: bytes) -> None:
    with pytest.raises(ValueError, match="a secret has 32 bytes|not a private key of secp256k1"):
        Box(secret)


@given(st.binary(max_size=5000))
def test_what_one_seals_the_other_opens(plain: bytes) -> None:
    assert BEN.open(ANN.seal(plain, BEN.public), ANN.public) == plain


@given(st.integers(0, len(SEALED) - 1), st.integers(1, 255))
def test_a_change_of_any_byte_is_found(place: int, mask: int) -> None:
    changed = bytearray(SEALED)
    changed[place] ^= mask
    with pytest.raises(BusError, match="was changed"):
        BEN.open(bytes(changed), ANN.public)


def test_an_empty_payload_is_the_shortest_cipher() -> None:
    assert len(ANN.seal(b"", BEN.public)) == 28


def test_each_cipher_has_a_nonce_of_its_own() -> None:
    assert len({ANN.seal(b"text", BEN.public) for _ in range(50)}) == 50


def test_a_box_shows_its_public_key_alone() -> None:
    assert repr(ANN) == f"Box(public={ANN.public.hex()})"


def test_a_shared_key_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    box, made = Box(b"\4" * 32), []
    agree = box._agree
    monkeypatch.setattr(box, "_agree", lambda public: made.append(public) or agree(public))
    box.open(ANN.seal(b"1", box.public), ANN.public)
    box.seal(b"2", ANN.public)
    assert made == [ANN.public]


def test_the_shared_key_used_least_recently_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(e2e, "MAX_PEERS", 2)
    box = Box(b"\5" * 32)
    for peer in (ANN, BEN, ANN, EVE):
        box.seal(b"text", peer.public)
    assert list(box._shared) == [ANN.public, EVE.public]


def test_many_threads_use_one_box() -> None:
    boxes = [Box(bytes((0, n + 1)) * 16) for n in range(20)]
    hub = Box(b"\6" * 32)

    def there_and_back(number: int) -> bytes:
        peer, text = boxes[number % 20], b"%d" % number
        return hub.open(
            peer.seal(peer.open(hub.seal(text, peer.public), hub.public), hub.public), peer.public
        )

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(there_and_back, range(200))) == [b"%d" % n for n in range(200)]
