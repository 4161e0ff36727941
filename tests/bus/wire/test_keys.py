"""Secrets are read strictly and never shown, and a signature holds for one message alone."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.bus.wire.keys import DEV_WORDS, Identity, KeyType, verify

from ...helpers.bus.captured import PEOPLE, TWINS, identity
from ...helpers.tables import each_case

WORDS = PEOPLE["carol"]["secret"]
SEED = f"0x{PEOPLE['carol']['seed_hex']}"
TYPES = list(KeyType)

BAD = {
    "nothing": "",
    "white space": " \n",
    "one word": "abandon",
    "eleven words": " ".join(WORDS.split()[:11]),
    "thirteen words": f"{WORDS} zoo",
    "a word that is none": WORDS.replace("they", "thay"),
    "a wrong checksum": " ".join(["zoo"] * 12),
    "words in another order": " ".join(reversed(WORDS.split())),
    "words in capitals": WORDS.upper(),
    "commas": WORDS.replace(" ", ", "),
    "an empty seed": "0x",
    "a seed of 31 bytes": SEED[:-2],
    "a seed of 33 bytes": f"{SEED}00",
    "a seed that is no hexadecimal": SEED[:-1] + "g",
    "a seed without its mark": SEED[2:],
    "a mark in capitals": "0X" + SEED[2:],
    "a seed with a space in it": f"{SEED[:10]} {SEED[10:]}",
    "an empty path": f"{WORDS}//",
    "an empty part of a path": f"{WORDS}//a////b",
    "a path alone that is empty": "//",
    "a soft junction": f"{WORDS}/soft",
    "a soft junction after a hard one": f"{WORDS}//hard/soft",
    "a password": f"{WORDS}///password",
    "a path without end": "//" + "x" * 2000,
    "a seed that is no private key of secp256k1": "0x" + "0" * 64,
    "a seed beyond secp256k1": "0x" + "f" * 64,
}


@each_case
@pytest.mark.parametrize("why", BAD)
def test_a_bad_secret_is_refused(why: str) -> None:
    with pytest.raises(ValueError, match="a mnemonic must|a seed must|derivation|secp256k1"):
        Identity.from_secret(BAD[why], "ed25519")


@each_case
@pytest.mark.parametrize("why", [why for why, secret in BAD.items() if len(secret) > 20])
def test_an_error_does_not_repeat_the_secret(why: str) -> None:
    with pytest.raises(ValueError, match=r".+") as refused:
        Identity.from_secret(BAD[why], "ed25519")
    told = f"{refused.value!r} {refused.value.__cause__!r} {refused.value.__suppress_context__}"
    assert not any(word in told for word in BAD[why].split() if len(word) > 4)


@pytest.mark.parametrize("key_type", ["", "ED25519", "ecdsa", "rsa"])
def test_another_type_of_key_is_refused(key_type: str) -> None:
    with pytest.raises(ValueError, match="expected the key type 'ed25519' or 'sr25519'"):
        Identity.from_secret(WORDS, key_type)


@pytest.mark.parametrize("key_type", TYPES)
@pytest.mark.parametrize(
    "text", [f"  {WORDS}\n", WORDS.replace(" ", "  "), WORDS.replace(" ", "\t")]
)
def test_white_space_around_words_does_not_matter(text: str, key_type: KeyType) -> None:
    expected = Identity.from_secret(WORDS, key_type).account
    assert Identity.from_secret(text, key_type).account == expected


# Made by another implementation, py-sr25519-bindings through substrate-interface.
@pytest.mark.parametrize(
    ("path", "account"),
    [
        ("//1", "b606fc73f57f03cdb4c932d475ab426043e429cecc2ffff0d2672b0df8398c48"),
        ("//0//x", "d47a7c2021b6169a62a84b0868157a0e95fd949bb2d967c8aacec9c646bd6406"),
        ("//" + "long" * 20, "9e178682a8c972d18b003af869cadd1cea5c3f2adb6110698f6985eacd3c1f16"),
        ("//007", "ba8e2c7594dd74730f3ca835e95455d199261897edc9735d602ea29615e2b10b"),
        ("//é", "7c37e5f83e66b60bea362e83c7a7b89be48fe9ac6f4db58b017c631da72e3e3d"),
    ],
)
def test_a_path_leads_to_their_account(path: str, account: str) -> None:
    assert Identity.from_secret(path, "sr25519").account.hex() == account


@pytest.mark.parametrize("key_type", TYPES)
def test_a_path_alone_starts_from_the_words_for_tests(key_type: KeyType) -> None:
    named = Identity.from_secret(f"{DEV_WORDS}//Bob", key_type)
    assert Identity.from_secret("//Bob", key_type).account == named.account


@pytest.mark.parametrize("key_type", TYPES)
def test_a_number_beyond_64_bits_is_a_text(key_type: KeyType) -> None:
    numbers = {Identity.from_secret(f"//{2**64 + n}", key_type).account for n in (-1, 0, 1)}
    assert len(numbers) == 3


@pytest.mark.parametrize("key_type", TYPES)
def test_a_path_leaves_the_key_for_encryption(key_type: KeyType) -> None:
    plain, derived = (
        Identity.from_secret(secret, key_type) for secret in (WORDS, f"{WORDS}//path")
    )
    assert plain.account != derived.account
    assert plain.e2e_public == derived.e2e_public == derived.secret_box.public


@pytest.mark.parametrize("show", [repr, str])
def test_an_identity_shows_no_secret(show: type[str]) -> None:
    text = show(identity("carol"))
    assert text == f"Identity({PEOPLE['carol']['accountId']}, ed25519)"


def test_its_attributes_show_no_secret() -> None:
    shown = repr(vars(identity("carol")))
    assert not any(word in shown for word in [*WORDS.split(), PEOPLE["carol"]["seed_hex"]])


def test_a_derived_secret_is_the_same_for_one_purpose_and_identity_alone() -> None:
    secrets = {
        identity(name).derive(purpose) for name in ("alice", "carol") for purpose in (b"a", b"b")
    }
    assert len(secrets) == 4
    assert {len(secret) for secret in secrets} == {32}
    assert identity("alice").derive(b"a") in secrets


@pytest.mark.parametrize("name", ["alice", "carol"])
def test_an_identity_is_not_pickled(name: str) -> None:
    with pytest.raises(TypeError, match="an identity holds secrets"):
        pickle.dumps(identity(name))


def test_an_identity_tells_its_type() -> None:
    assert identity("alice").key_type is KeyType.SR25519


def test_signatures_of_ed25519_are_the_same_each_time() -> None:
    assert identity("carol").sign(b"text") == identity("carol").sign(b"text")


@pytest.mark.parametrize("name", ["alice", "carol"])
@given(message=st.binary(max_size=100))
def test_a_signature_is_valid(name: str, message: bytes) -> None:
    assert verify(identity(name).account, message, identity(name).sign(message))


@pytest.mark.parametrize("name", ["alice", "carol"])
@given(place=st.integers(0, 64), mask=st.integers(1, 255))
def test_a_changed_signature_is_not(name: str, place: int, mask: int) -> None:
    signature = bytearray(identity(name).sign(b"text"))
    signature[place] ^= mask
    assert not verify(identity(name).account, b"text", bytes(signature))


@pytest.mark.parametrize("name", ["alice", "carol"])
@pytest.mark.parametrize("message", [b"", b"tex", b"text ", b"Text"])
def test_a_signature_holds_for_one_message(name: str, message: bytes) -> None:
    assert not verify(identity(name).account, message, identity(name).sign(b"text"))


@pytest.mark.parametrize("name", ["alice", "carol"])
def test_a_signature_holds_for_one_account(name: str) -> None:
    assert not verify(TWINS[2].account, b"text", identity(name).sign(b"text"))


@each_case
@pytest.mark.parametrize(
    "signature",
    [
        b"",
        b"e",
        b"s",
        b"e" + bytes(63),
        b"e" + bytes(64),
        b"e" + bytes(65),
        b"s" + bytes(64),
        b"e" + b"\xff" * 64,
        b"s" + b"\xff" * 64,
        bytes(65),
        b"E" + bytes(64),
        b"S" + bytes(64),
    ],
    ids=lambda signature: f"{signature[:2].hex()}-{len(signature)}",
)
def test_what_is_no_signature_is_invalid(signature: bytes) -> None:
    assert not verify(TWINS[3].account, b"text", signature)


@each_case
@pytest.mark.parametrize(
    "account", [b"", bytes(31), bytes(33), b"\xff" * 32, b"\xed" + b"\xff" * 31]
)
@pytest.mark.parametrize("name", ["alice", "carol"])
def test_an_account_that_is_none_signs_nothing(account: bytes, name: str) -> None:
    assert not verify(account, b"text", identity(name).sign(b"text"))


# The point that signs nothing, and points whose small multiples are it: about every eighth message
# has a signature of zeros that libraries accept.
WEAK = [
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
    bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
    b"\xec" + b"\xff" * 30 + b"\x7f",
    b"\xed" + b"\xff" * 30 + b"\x7f",
    b"\xee" + b"\xff" * 30 + b"\x7f",
]
FORGED = [b"e\1" + bytes(63), b"s" + bytes(63) + b"\x80"]


@each_case
@pytest.mark.parametrize("account", WEAK, ids=lambda account: account[:2].hex())
@pytest.mark.parametrize("sign_bit", [0, 0x80])
@pytest.mark.parametrize("signature", FORGED, ids=["ed25519", "sr25519"])
def test_nobody_signs_for_an_account_for_which_anybody_could(
    account: bytes, sign_bit: int, signature: bytes
) -> None:
    account = account[:-1] + bytes((account[-1] | sign_bit,))
    valid = [verify(account, b"%d" % number, signature) for number in range(40)]
    assert not any(valid)


@pytest.mark.parametrize("prefix", ["e", "s"])
@given(account=st.binary(min_size=32, max_size=32), body=st.binary(min_size=64, max_size=64))
def test_any_signature_is_judged_without_an_error(prefix: str, account: bytes, body: bytes) -> None:
    assert verify(account, b"text", prefix.encode() + body) is False


# New ones


@pytest.mark.parametrize("key_type", TYPES)
def test_a_new_identity_is_made_again_of_its_words(key_type: KeyType) -> None:
    made = Identity.generate(key_type)
    assert made.mnemonic is not None
    assert len(made.mnemonic.split()) == 12
    again = Identity.from_secret(made.mnemonic, key_type)
    assert (again.account, again.e2e_public) == (made.account, made.e2e_public)
    assert again.mnemonic is None
    assert made.mnemonic not in repr(made)


def test_no_two_new_identities_are_the_same() -> None:
    assert len({Identity.generate().account for _ in range(20)}) == 20


@pytest.mark.parametrize("key_type", TYPES)
def test_a_secret_has_an_identity_of_each_type(key_type: KeyType) -> None:
    for made_with in TYPES:
        made = Identity.from_secret("//Alice", made_with).with_key_type(key_type)
        assert made.account == Identity.from_secret("//Alice", key_type).account
