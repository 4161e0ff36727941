"""Try to take what is another's: sessions of River, identities and messages of the bus (H18)."""

from __future__ import annotations

import random
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from wsmux import rpc
from wsmux.bus.errors import TokenRefused
from wsmux.bus.relay.relay import Relay
from wsmux.bus.wire.tokens import MAX_LIFE, make_token
from wsmux.rpc.session import session_registry
from wsmux.rpc.session.connector import Connector
from wsmux.rpc.wire.ids import ID_BYTES, new_id

from ..helpers.bus.relays import Node, identity, relay, served
from ..helpers.inside import session_records_of
from ..helpers.raw_peer import wait_for
from ..helpers.rpc.raw_river import RawRiver
from ..helpers.rpc.standing_server import CALM
from ..helpers.rpc.tiny_codec import TinyCodec

GUESSES = 100
MISMATCH = "SESSION_STATE_MISMATCH"


def service() -> rpc.Service:
    made = rpc.Service("test")

    @made.stream()
    def echo(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> Iterator[Any]:
        yield from requests

    return made


class Stage:
    """Serve River, with one client by hand that holds a session and a call."""

    def __init__(self, server: rpc.RpcServer, metadata: Any) -> None:
        self.server = server
        self.metadata = metadata
        self.session = f"session-{new_id()}{new_id()}"
        self.victim = self.dial("victim")
        self.victim.attach(self.session, self.said(metadata))
        self.victim.open("call", "echo")
        self.check_lives()

    def said(self, metadata: Any) -> dict[str, Any]:
        return {} if metadata is None else {"metadata": metadata}

    def dial(self, own: str) -> RawRiver:
        return RawRiver.dial(self.server.port, "json", websocket=True, own=own)

    def check_lives(self, serial: int = 0) -> None:
        """Check that the victim's connection carries its call."""
        self.victim.exchange("call", serial)

    def attempt(self, session: str, metadata: Any = None, own: str = "victim") -> dict[str, Any]:
        """Ask for a session as somebody else would, with the right counters; return the answer."""
        with self.dial(own) as thief:
            thief.seq, thief.ack = self.victim.seq, self.victim.ack
            thief.hello(session, self.said(metadata))
            return thief.status()


@contextmanager
def staged(metadata: Any = None, **serving: Any) -> Iterator[Stage]:
    options = serving.pop("options", CALM)
    with rpc.serve([service()], codec="json", options=options, **serving) as server:
        made = Stage(server, metadata)
        with made.victim:
            yield made


def guesses(session: str, count: int) -> Iterator[str]:
    """Yield ids that are not the session's, most of them close to it."""
    chance = random.Random(1)
    for number in range(count):
        at = chance.randrange(len(session))
        close = session[:at] + chance.choice("abcXYZ019-_ \0é") + session[at + 1 :]
        yield from (
            guess
            for guess in (
                [close, session[:-1], session + "x", session.upper(), "", secrets.token_urlsafe()]
            )[number % 6 : number % 6 + 1]
            if guess != session
        )


def check_guesses(count: int) -> None:
    with staged() as stage:
        taken = 0
        for serial, guess in enumerate(guesses(stage.session, count)):
            taken += stage.attempt(guess)["ok"]
            if not serial % 50:
                stage.check_lives(serial)
        assert taken == 0
        stage.check_lives()
        assert stage.server.handler.sessions == 1


def test_no_guess_takes_a_session() -> None:
    check_guesses(GUESSES)


@pytest.mark.long
def test_none_of_a_thousand_guesses_takes_a_session() -> None:
    check_guesses(1200)  # a few of them are the id itself, and left out


def test_a_session_has_144_bits_of_chance() -> None:
    made: list[str] = []

    def counted() -> str:
        made.append(new_id())
        return made[-1]

    connector = Connector(
        "client", "SERVER", codec=TinyCodec(), options=CALM, new_id=counted, random=random.random
    )
    (instance,) = made
    made.clear()
    session = connector.need_session(0.0)
    assert instance not in session.id
    assert session.id == "session-" + "".join(made)
    assert len(made) * ID_BYTES * 8 >= 128
    assert re.fullmatch(r"session-[A-Za-z0-9_-]{24}", session.id)


def test_ids_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = session_registry.hmac.compare_digest

    def note(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(session_registry.hmac, "compare_digest", note)
    with staged() as stage:
        for guess in ("guess", stage.session[:-1] + "!", "half \ud800"):
            assert stage.attempt(guess)["ok"] is False
            assert compared[-1] == (
                stage.session.encode(),
                guess.encode(errors="surrogatepass"),
            )


def test_a_second_connection_of_a_session_ends_the_first() -> None:
    with staged() as stage, stage.dial("victim") as again:
        again.seq, again.ack = stage.victim.seq, stage.victim.ack
        again.attach(stage.session)
        assert stage.victim.recv_end() == 1000
        again.exchange("call", "goes on")
        assert stage.server.handler.sessions == 1


def test_a_recorded_handshake_is_worth_nothing_once_the_session_went_on() -> None:
    with staged() as stage, stage.dial("victim") as again:
        again.seq, again.ack = stage.victim.seq, stage.victim.ack
        recorded = again.seq, again.ack
        again.attach(stage.session)
        again.exchange("call", "more")
        again.exchange("call", "acknowledges what came before")
        with stage.dial("victim") as thief:
            thief.seq, thief.ack = recorded
            thief.hello(stage.session)
            status = thief.status()
        assert (status["ok"], status["code"]) == (False, MISMATCH)
        again.exchange("call", "undisturbed")


def test_the_id_of_a_session_that_is_over_resumes_nothing() -> None:
    quick = replace(CALM, session_disconnect_grace=0.05)
    with staged(options=quick) as stage:
        stage.victim.sock.close()
        wait_for(lambda: stage.server.handler.sessions == 0, "the end of the grace")
        status = stage.attempt(stage.session)
        assert (status["ok"], status["code"]) == (False, MISMATCH)


def user(metadata: Any) -> object:
    return metadata["user"]


MINE, THEIRS = {"user": "alice"}, {"user": "mallory"}


def test_who_knows_the_ids_of_another_identity_resumes_nothing() -> None:
    with staged(MINE, identity=user) as stage:
        status = stage.attempt(stage.session, THEIRS)
        assert (status["ok"], status["code"]) == (False, MISMATCH)
        assert "somebody else" in status["reason"]
        stage.check_lives()
        assert stage.attempt(stage.session, MINE) == {"ok": True, "sessionId": stage.session}


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "detached"])
def test_another_identity_cannot_replace_a_session(connected: bool) -> None:
    with staged(MINE, identity=user) as stage:
        if not connected:
            stage.victim.sock.close()
            (record,) = session_records_of(stage.server.handler)
            wait_for(lambda: not record.session.attached, "the loss to be noticed")
        with stage.dial("victim") as thief:
            thief.hello("session-of-mallory", {"metadata": THEIRS})
            assert thief.status()["code"] == MISMATCH
        with stage.dial("victim") as again:
            again.seq, again.ack = stage.victim.seq, stage.victim.ack
            again.attach(stage.session, {"metadata": MINE})
            again.exchange("call", "still mine")


def test_new_metadata_of_another_identity_end_the_session() -> None:
    with staged(MINE, identity=user) as stage:
        payload = {"type": "REHANDSHAKE_RESP", "metadata": THEIRS}
        stage.victim.send({"streamId": "rehandshake", "payload": payload})
        assert stage.victim.recv_end() == 1000
        wait_for(lambda: stage.server.handler.sessions == 0, "the end of the session")


def test_new_metadata_of_the_same_identity_are_taken() -> None:
    with staged(MINE, identity=user) as stage:
        (record,) = session_records_of(stage.server.handler)
        renewed = {**MINE, "more": 1}
        payload = {"type": "REHANDSHAKE_RESP", "metadata": renewed}
        stage.victim.send({"streamId": "rehandshake", "payload": payload})
        wait_for(lambda: record.metadata == renewed, "the new metadata")
        stage.check_lives()


# The bus


def forged(number: int) -> str:
    """Return a token for twin 1 that is not of twin 1, or not of now."""
    now, chance = int(time.time()), random.Random(number)
    good = make_token(identity(1), 1, None, now)
    head, claims, signature = good.split(".")
    at = chance.randrange(len(signature) - 1)
    other = "B" if signature[at] == "A" else "A"
    kinds: list[Callable[[], str]] = [
        lambda: make_token(identity(2 + number % 7), 1, None, now),  # signed by another twin
        lambda: f"{head}.{claims}.{signature[:at]}{other}{signature[at + 1 :]}",
        lambda: make_token(identity(1), 1, None, now - MAX_LIFE - 60 - number, MAX_LIFE),  # stale
        lambda: f"{head}.{make_token(identity(1), 2, None, now).split('.')[1]}.{signature}",
        lambda: f"{head}.{claims}.{secrets.token_urlsafe(65)[:87]}",
    ]
    return kinds[number % len(kinds)]()


def check_refused(made: Relay, count: int) -> None:
    for number in range(count):
        with pytest.raises(TokenRefused) as refused:
            made.admit(forged(number))
        assert refused.value.status == 401


def test_no_forged_or_stale_token_is_taken() -> None:
    check_refused(relay(), GUESSES)


@pytest.mark.long
def test_none_of_a_thousand_tokens_is_taken() -> None:
    check_refused(relay(), 1000)


def test_one_connection_of_an_address_is_kept() -> None:
    with served() as server, Node(server, 1, "s") as first, Node(server, 1, "s") as second:
        assert first.ended()[0] == 4001
        second.nothing()
        assert len(server.relay.sessions) == 1


def test_a_twin_cannot_send_as_another() -> None:
    with served() as server, Node(server, 1) as one, Node(server, 2) as two:
        made = one.ask(two.address, uid="mine")
        assert two.take() == made
        made.source.twin, made.uid = 3, "theirs"
        one.put(made)
        one.answers()
        two.nothing()
