"""Handshakes captured from shipped implementations are decided as they were there.

``data/handshakes.json`` holds conversations of TypeScript and Python clients with a TypeScript
server, frame by frame, "c2s" from the client and "s2c" to it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wsmux.protocols.base import Role
from wsmux.rpc.options import Options
from wsmux.rpc.session.session import Session
from wsmux.rpc.session.session_registry import Accepted, Hello, Refused, Sessions
from wsmux.rpc.wire.envelope import Envelope
from wsmux.rpc.wire.handshake import (
    REHANDSHAKE_STREAM,
    Refusal,
    RefusalCode,
    parse_rehandshake_request,
    parse_rehandshake_response,
    parse_response,
)

from ...helpers.inside import remember
from ...helpers.rpc.memory_net import new_id
from ...helpers.rpc.tiny_codec import TinyCodec

VECTORS = json.loads((Path(__file__).parent / "data" / "handshakes.json").read_text())
CONVERSATIONS: dict[str, Any] = VECTORS["conversations"]

CODEC = TinyCodec()


def frames(name: str, direction: str) -> list[bytes]:
    """Return the messages of one side, without closes."""
    sides = CONVERSATIONS[name]["frames"]
    return [f["text"].encode() for f in sides if f["dir"] == direction and "text" in f]


def validated(hello: Hello) -> RefusalCode | None:
    """Validate metadata as the captured server did."""
    metadata = hello.request.metadata
    if not isinstance(metadata, dict) or "token" not in metadata:
        return RefusalCode.MALFORMED_HANDSHAKE_META
    if metadata["token"] != "secret":
        return RefusalCode.REJECTED_BY_CUSTOM_HANDLER
    return None


def decided(name: str, *, validate: bool = True) -> Accepted | Refused:
    """Return what a server without sessions makes of a conversation's first message."""
    server = Sessions("SERVER", codec=CODEC, options=Options(), new_id=new_id)
    hello = server.first_frame(frames(name, "c2s")[0])
    if isinstance(hello, Refused):
        return hello
    code = validated(hello) if validate else None
    if code is not None:
        return server.refuse(hello.client_id, code, "metadata")
    return server.decide(hello, 0.0)


def response(data: bytes | None) -> str | Refusal:
    assert data is not None
    return parse_response(CODEC.decode(data).payload)


@pytest.mark.parametrize(
    ("name", "validate"),
    [
        ("handshake_new_session", False),
        ("heartbeat", False),
        ("python_client_all_kinds", False),
        ("rehandshake", True),
    ],
)
def test_an_accepted_handshake_is_accepted_with_the_same_response(
    name: str, validate: bool
) -> None:
    accepted = decided(name, validate=validate)
    assert isinstance(accepted, Accepted)
    ours, theirs = CODEC.decode(accepted.response), CODEC.decode(frames(name, "s2c")[0])
    same = ("sender", "receiver", "seq", "ack", "flags", "payload")
    assert [getattr(ours, f) for f in same] == [getattr(theirs, f) for f in same]


@pytest.mark.parametrize(
    "name",
    [
        "refused_version",
        "refused_malformed",
        "refused_metadata_shape",
        "refused_by_handler",
        "refused_unknown_session",
    ],
)
def test_a_refused_handshake_is_refused_with_the_same_code(name: str) -> None:
    refused = decided(name)
    assert isinstance(refused, Refused)
    ours, theirs = response(refused.response), response(frames(name, "s2c")[0])
    assert isinstance(ours, Refusal)
    assert isinstance(theirs, Refusal)
    assert ours.code == theirs.code == refused.code


@pytest.mark.parametrize("name", ["undecodable_first_frame", "envelope_invalid"])
def test_what_is_no_message_gets_no_response(name: str) -> None:
    refused = decided(name)
    assert isinstance(refused, Refused)
    assert refused.response is None
    assert frames(name, "s2c") == []


def test_the_old_version_is_refused_although_shipped_servers_take_it() -> None:
    refused = decided("accepted_v1_1")
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.PROTOCOL_VERSION_MISMATCH


def test_every_response_captured_is_read_by_a_client() -> None:
    answers = {
        name: response(frames(name, "s2c")[0])
        for name in CONVERSATIONS
        if frames(name, "s2c") and name != "handshake_transparent_reconnect"
    }
    refusals = {name for name, answer in answers.items() if isinstance(answer, Refusal)}
    assert refusals == {name for name in answers if name.startswith("refused_")}


def end(role: Role, name: str, acks: int = 0, sends: int = 0) -> Session:
    """Return an attached end of the conversation's session, with these counters."""
    accepted = CODEC.decode(frames(name, "s2c")[0])
    own, peer = accepted.receiver, accepted.sender
    if role is Role.SERVER:
        own, peer = peer, own
    session_id = accepted.payload["status"]["sessionId"]
    made = Session(
        role, session_id, own, peer, codec=CODEC, options=Options(), new_id=new_id, now=0.0
    )
    made.attach(0.0)
    for _ in range(sends):
        made.send(b"0", stream_id="s", flags=0)
    for seq in range(acks):
        envelope = Envelope("id", peer, own, seq, sends, "s", 0, None)
        made.receive(CODEC.encode(envelope, b"0"), 0.0)
    made.data_to_send()
    return made


def test_a_client_answers_heartbeats_as_captured() -> None:
    client = end(Role.CLIENT, "heartbeat")
    for data in frames("heartbeat", "s2c")[1:]:
        client.receive(data, 0.0)
    ours = [CODEC.decode(data) for data in client.data_to_send()]
    theirs = [CODEC.decode(data) for data in frames("heartbeat", "c2s")[1:]]
    same = ("sender", "receiver", "seq", "ack", "stream_id", "flags", "payload")
    assert [[getattr(m, f) for f in same] for m in ours] == [
        [getattr(m, f) for f in same] for m in theirs
    ]


def test_a_client_asks_for_its_session_again_as_captured() -> None:
    name = "handshake_transparent_reconnect"
    client = end(Role.CLIENT, name, acks=19, sends=27)
    client.detach(0.0)
    client.send(b"{}", stream_id="s", flags=10)
    client.send(b"{}", stream_id="s", flags=10)
    hello = CODEC.decode(frames(name, "c2s")[0]).payload["expectedSessionState"]
    assert client.expected_state() == (hello["nextExpectedSeq"], hello["nextSentSeq"])


def test_a_server_resumes_that_session_and_accepts_what_is_repeated() -> None:
    name = "handshake_transparent_reconnect"
    server = Sessions("SERVER", codec=CODEC, options=Options(), new_id=new_id)
    session = end(Role.SERVER, name, acks=27, sends=19)
    remember(server, session)
    assert server.lost(session, session.attachments, 0.0) is False
    hello = server.first_frame(frames(name, "c2s")[0])
    assert isinstance(hello, Hello)
    accepted = server.decide(hello, 1.0)
    assert isinstance(accepted, Accepted)
    assert (accepted.session, accepted.resumed) == (session, True)
    for data in frames(name, "c2s")[1:]:
        assert session.receive(data, 1.0) is not None
    assert session.expected_state() == (29, 19)


def test_a_python_client_is_followed_to_the_end_of_its_conversation() -> None:
    name = "python_client_all_kinds"
    server = end(Role.SERVER, name)
    for message in CONVERSATIONS[name]["frames"][2:]:
        if message["dir"] == "c2s" and "text" in message:
            assert server.receive(message["text"].encode(), 0.0) is not None
        elif "text" in message:
            server.send(b"0", stream_id="s", flags=0)
            (data,) = server.data_to_send()
            theirs = CODEC.decode(message["text"].encode())
            assert (CODEC.decode(data).seq, CODEC.decode(data).ack) == (theirs.seq, theirs.ack)
    assert server.expected_state().next_expected == 10


def test_a_re_handshake_is_read_as_captured() -> None:
    asked = CODEC.decode(frames("rehandshake", "s2c")[1])
    answered = CODEC.decode(frames("rehandshake", "c2s")[1])
    parse_rehandshake_request(asked.payload)
    assert parse_rehandshake_response(answered.payload) == {"token": "secret"}
    assert {asked.stream_id, answered.stream_id} == {REHANDSHAKE_STREAM}
