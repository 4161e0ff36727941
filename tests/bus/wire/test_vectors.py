"""What known peers produced means to us what it means to them, and ours has their bytes."""

from __future__ import annotations

import os
from typing import Any

import pytest

from wsmux.bus.errors import (
    BAD_SIGNATURE,
    CANNOT_PARSE,
    E2E_FAILURE,
    EXPIRED,
    FAILED,
    FROM_RELAY,
    NO_PUBLIC_KEY,
    NOT_BINARY,
    UNKNOWN_TWIN,
    TokenRefused,
)
from wsmux.bus.twins.chain import split_domains
from wsmux.bus.wire import envelope as envelopes
from wsmux.bus.wire.address import Address, address_of, parse_address
from wsmux.bus.wire.e2e import Box
from wsmux.bus.wire.envelope import Kind, digest, kind_of, parse
from wsmux.bus.wire.keys import Identity, verify
from wsmux.bus.wire.messages import AddressMessage, Backlog, Envelope
from wsmux.bus.wire.tokens import Claims, check_token, read_token

from ...helpers.bus.captured import COMPUTED, NOW, NPM, PEOPLE, TWINS, identity, rows
from ...helpers.tables import each_case

ENVELOPES = rows(NPM["envelopes"], "name")
SECRETS = {key["name"]: key for key in NPM["rust_test_e2e_keys"]}

# Fields that the vectors write as the message has them.
VERBATIM = {
    "uid",
    "tags",
    "timestamp",
    "expiration",
    "schema",
    "federation",
    "relays",
    "plain_hex",
    "cipher_hex",
}

# Of the tokens that the known relay takes, this one is refused here.
LONG_LIVED = "valid for ten years (not limited by the real relay)"


def envelope_of(row: dict[str, Any]) -> Envelope:
    return parse(bytes.fromhex(row["serialized_hex"]))


def named_address(address: dict[str, Any]) -> Address:
    return Address(address["twin"], address["connection"])


def box_of(name: str) -> Box:
    if name in SECRETS:
        return Identity.from_secret(SECRETS[name]["secret"], "ed25519").secret_box
    return identity(name).secret_box


@each_case
@pytest.mark.parametrize("key", rows(NPM["identities"] + NPM["named_keys"], "secret"))
def test_a_secret_gives_their_account(key: dict[str, Any]) -> None:
    made = Identity.from_secret(key["secret"], key["keyType"])
    assert (made.address, made.account.hex()) == (key["accountId"], key["account_hex"])


@pytest.mark.parametrize("key", rows(NPM["identities"] + NPM["rust_test_e2e_keys"], "name"))
def test_a_secret_gives_their_key_for_encryption(key: dict[str, Any]) -> None:
    made = Identity.from_secret(key["secret"], "ed25519")
    assert made.e2e_public.hex() == key["e2e_public_hex"]


@pytest.mark.parametrize("person", rows(NPM["identities"], "name"))
def test_their_seed_stands_for_their_words(person: dict[str, Any]) -> None:
    made = Identity.from_secret(f"0x{person['seed_hex']}", person["keyType"])
    assert made.account.hex() == person["account_hex"]


@pytest.mark.parametrize("row", NPM["e2e"])
def test_what_they_encrypted_is_read(row: dict[str, Any]) -> None:
    plain = box_of(row["to"]).open(bytes.fromhex(row["cipher_hex"]), box_of(row["from"]).public)
    assert plain.hex() == row["plain_hex"]


@pytest.mark.parametrize("row", NPM["e2e"])
def test_what_we_encrypt_has_their_bytes(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    nonce = bytes.fromhex(row["nonce_hex"])
    monkeypatch.setattr(os, "urandom", lambda size: nonce[:size])
    sealed = box_of(row["from"]).seal(
        bytes.fromhex(row["plain_hex"]), bytes.fromhex(row["to_public_hex"])
    )
    assert sealed.hex() == row["cipher_hex"]


@each_case
@pytest.mark.parametrize("row", ENVELOPES)
def test_their_envelope_holds_what_they_put_in(row: dict[str, Any]) -> None:
    found, fields = envelope_of(row), row["fields"]
    assert {
        "uid": found.uid,
        "tags": found.tags,
        "timestamp": found.timestamp,
        "expiration": found.expiration,
        "schema": found.schema if found.HasField("schema") else None,
        "federation": found.federation if found.HasField("federation") else None,
        "relays": list(found.relays),
        "plain_hex": found.plain.hex() if found.HasField("plain") else None,
        "cipher_hex": found.cipher.hex() if found.HasField("cipher") else None,
    } == {name: fields[name] for name in fields if name in VERBATIM}


@each_case
@pytest.mark.parametrize("row", ENVELOPES)
def test_their_envelope_has_its_addresses_and_its_message(row: dict[str, Any]) -> None:
    found, fields = envelope_of(row), row["fields"]
    error = {"code": found.error.code, "message": found.error.message}
    assert address_of(found.source) == named_address(fields["source"])
    assert address_of(found.destination) == named_address(fields["destination"])
    assert (found.request.command if kind_of(found) is Kind.REQUEST else None) == fields["request"]
    assert (kind_of(found) is Kind.RESPONSE) == fields["response"]
    assert (error if kind_of(found) is Kind.ERROR else None) == fields["error"]


@each_case
@pytest.mark.parametrize("row", ENVELOPES)
def test_their_envelope_keeps_its_fields_when_written_again(row: dict[str, Any]) -> None:
    again = envelope_of(row).SerializeToString()
    assert len(again) == len(row["serialized_hex"]) // 2
    assert parse(again) == envelope_of(row)


@each_case
@pytest.mark.parametrize("row", ENVELOPES)
def test_our_digest_is_theirs(row: dict[str, Any]) -> None:
    assert digest(envelope_of(row)).hex() == row["challenge_md5_hex"]


@each_case
@pytest.mark.parametrize("row", ENVELOPES)
def test_their_signature_is_valid(row: dict[str, Any]) -> None:
    found = envelope_of(row)
    assert found.signature.hex() == row["signature_hex"]
    account = bytes.fromhex(PEOPLE[row["signer"]]["account_hex"])
    assert verify(account, digest(found), found.signature)


@pytest.mark.parametrize("row", [row for row in NPM["envelopes"] if row["clear_text_hex"]])
def test_the_cipher_in_their_envelope_is_read(row: dict[str, Any]) -> None:
    found = envelope_of(row)
    name = {twin["id"]: name for name, twin in PEOPLE.items()}[found.destination.twin]
    plain = identity(name).secret_box.open(found.cipher, box_of(row["signer"]).public)
    assert plain.hex() == row["clear_text_hex"]


@each_case
@pytest.mark.parametrize("row", rows(COMPUTED["signatures"]["cases"], "why"))
def test_a_signature_is_judged_as_they_judge(row: dict[str, Any]) -> None:
    found = envelope_of(row)
    account = TWINS[COMPUTED["signatures"]["signer_twin"]].account
    assert verify(account, digest(found), found.signature) is row["valid"]


@pytest.mark.parametrize("row", rows(COMPUTED["same_digest"], "why"))
def test_two_envelopes_may_share_a_digest(row: dict[str, Any]) -> None:
    first, second = (parse(bytes.fromhex(row[name])) for name in ("first_hex", "second_hex"))
    assert first != second
    assert digest(first).hex() == digest(second).hex() == row["md5_hex"]


def test_an_envelope_without_addresses_has_the_digest_of_rust() -> None:
    assert digest(Envelope()).hex() == COMPUTED["empty_envelope_md5_hex"]["rust"]


@pytest.mark.parametrize("row", rows(NPM["jwt"], "claims_json"))
def test_their_token_is_taken(row: dict[str, Any]) -> None:
    claims = check_token(row["token"], NOW, TWINS.get)
    assert claims == Claims(row["twin"], row["sid"], NOW, NOW + 1000)


@each_case
@pytest.mark.parametrize("row", rows(COMPUTED["tokens"]["cases"], "why"))
def test_a_token_is_judged_as_they_judge(row: dict[str, Any]) -> None:
    status = 101
    try:
        check_token(row["token"], NOW, TWINS.get, leeway=0)
    except TokenRefused as refused:
        status = refused.status
    assert status == (401 if row["why"] == LONG_LIVED else row["status"])


@pytest.mark.parametrize("row", rows(NPM["jwt"], "claims_json"))
def test_their_token_is_read_without_their_key(row: dict[str, Any]) -> None:
    assert read_token(row["token"]).session == row["sid"]


@pytest.mark.parametrize("row", COMPUTED["stamp"])
def test_a_stamp_is_theirs(row: dict[str, Any]) -> None:
    stamped = Envelope(timestamp=row["timestamp"], expiration=row["expiration"])
    envelopes.stamp(stamped, row["now"])
    assert [stamped.timestamp, stamped.expiration] == row["result"]


@pytest.mark.parametrize("row", COMPUTED["ttl"])
def test_the_time_left_is_theirs(row: dict[str, Any]) -> None:
    left = envelopes.time_left(
        Envelope(timestamp=row["timestamp"], expiration=row["expiration"]), row["now"]
    )
    assert (left if left > 0 else None) == row["result"]


@pytest.mark.parametrize("row", [row for row in COMPUTED["address_text"] if "error" not in row])
def test_an_address_is_read_as_they_read_it(row: dict[str, Any]) -> None:
    assert parse_address(row["text"]) == named_address(row)


@pytest.mark.parametrize("row", [row for row in COMPUTED["address_text"] if "error" in row])
def test_what_is_no_address_to_them_is_none_to_us(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected an address 'twin' or 'twin:session'"):
        parse_address(row["text"])


@pytest.mark.parametrize("row", COMPUTED["stream_keys"])
def test_a_stream_has_their_key(row: dict[str, Any]) -> None:
    address = Address(row["twin"], row["sid"])
    assert address.stream_key() == row["key"]


@each_case
@pytest.mark.parametrize("row", COMPUTED["fail_fast_tags"])
def test_tags_mean_what_they_mean_to_them(row: dict[str, Any]) -> None:
    assert envelopes.is_fail_fast(row["tags"]) is row["fail_fast"]


@pytest.mark.parametrize("row", COMPUTED["relay_domains"])
def test_domains_on_the_chain_are_theirs_but_for_the_empty_one(row: dict[str, Any]) -> None:
    assert split_domains(row["text"]) == tuple(filter(None, row["domains"]))


def test_a_pong_is_theirs() -> None:
    ping = parse(bytes.fromhex(NPM["ping"]["serialized_hex"]))
    assert kind_of(ping) is Kind.PING
    expected = parse(bytes.fromhex(COMPUTED["pong_for_ping"]["serialized_hex"]))
    assert envelopes.pong_for(ping) == expected


def test_their_ping_comes_from_its_session() -> None:
    ping = parse(bytes.fromhex(NPM["ping"]["serialized_hex"]))
    assert (ping.uid, address_of(ping.source)) == (
        NPM["ping"]["uid"],
        named_address(NPM["ping"]["from"]),
    )


@pytest.mark.parametrize("row", rows(COMPUTED["relay_errors"], "message"))
def test_an_error_of_a_relay_is_theirs(row: dict[str, Any]) -> None:
    source = AddressMessage(twin=1, connection="s1")
    made = envelopes.relay_error(Envelope(uid="u-1", source=source), row["message"], NOW)
    if row.get("from_federation"):
        made.ClearField("destination")  # the known relay leaves it empty there
    assert made == parse(bytes.fromhex(row["serialized_hex"]))


def test_the_codes_are_theirs() -> None:
    assert COMPUTED["peer_error_codes"] == {
        "not a binary frame": NOT_BINARY,
        "cannot parse": CANNOT_PARSE,
        "expired": EXPIRED,
        "unknown twin": UNKNOWN_TWIN,
        "bad signature": BAD_SIGNATURE,
        "sender has no public key": NO_PUBLIC_KEY,
        "e2e failure": E2E_FAILURE,
        "anything else": FAILED,
        "raised by a relay": FROM_RELAY,
    }


def test_a_backlog_has_their_bytes() -> None:
    made = Backlog(uid="u-1", reference="mine", reply_to="q-1", ttl=300)
    assert made.SerializeToString().hex() == COMPUTED["backlog"]["serialized_hex"]
