"""A relay, a gateway and clients log what happens at every level, and no secret."""

from __future__ import annotations

import base64
import json
import logging
import time
from contextlib import ExitStack

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import BusError
from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.session import identity_session
from wsmux.bus.wire.tokens import make_token

from ...helpers.bus.captured import PEOPLE, TWINS, identity
from ...helpers.bus.gateway_programs import WAIT, Caller, Service, database
from ...helpers.bus.people import Table
from ...helpers.bus.relays import DOMAIN, fetch, relay, served
from ...helpers.redis_server import RedisServer

SECRET = "a-payload-that-is-nobodys-business"


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the tokens that are made from now on."""
    made: list[str] = []

    def make(*args: object) -> str:
        made.append(make_token(*args))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(identity_session, "make_token", make)
    return made


def fail(payload: object) -> None:
    raise ValueError("the service failed")


def run(server: RedisServer) -> None:
    """Let the gateway of twin 1 and clients of twins 2 to 4 work, and fail in many ways."""
    table = Table({number: twin._replace(relays=(DOMAIN,)) for number, twin in TWINS.items()})
    url = database(server, 1)
    with ExitStack() as stack:
        relays = [stack.enter_context(served(relay(table))).url]
        gateway = Peer(identity("alice"), relays, table, url, twin=1, update=False)
        alice = stack.enter_context(gateway)
        bob = stack.enter_context(Client(identity("bob"), relays, table, twin=2, gateway=True))
        carol = stack.enter_context(Client(identity("carol"), relays, table, twin=3))
        caller = stack.enter_context(Caller(url))
        stack.enter_context(Service(url, "echo"))
        bob.serve({"echo": lambda payload: payload, "fail": fail})
        for each in (alice, bob, carol):
            each.wait_connected(WAIT)
        assert carol.call(1, "echo", SECRET, timeout=WAIT) == SECRET
        assert carol.call(2, "echo", SECRET, timeout=WAIT) == SECRET
        assert SECRET.encode() in caller.ask("echo", [2], SECRET)["dat"]
        caller.redis.set("msgbus.spoilt", "no list")
        for to, command in ((1, "spoilt"), (1, "../x"), (2, "fail"), (2, "none"), (9, "echo")):
            with pytest.raises(BusError):
                carol.call(to, command, SECRET, timeout=WAIT)
        with pytest.raises(BusError, match="not JSON"):
            carol.call_raw(2, "echo", SECRET.encode(), timeout=WAIT)
        for raw in (SECRET, f'{{"dat": "{SECRET}"}}', f'["{SECRET}"]'):
            caller.redis.lpush("msgbus.system.local", raw)
            caller.redis.lpush("msgbus.system.reply", raw)
        assert caller.ask("echo", [9], SECRET)["err"]["code"] == 103
        assert caller.ask("fail", [2], SECRET)["err"]["code"] == 500
        stranger = Client(identity("alice"), relays, table, twin=2)
        refused = stack.enter_context(stranger)
        with pytest.raises(BusError, match="the signature is not of the account"):
            refused.wait_connected(1)
        used = make_token(identity("carol"), 3, "again", int(time.time()))
        assert fetch(f"{relays[0]}/?{used}")[0] == 404
        assert used not in repr((alice, bob, carol, refused.relays()))


def test_a_whole_run_logs_no_secret(
    server: RedisServer, tokens: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    run(server)
    for said in ("connected over", "connected to", "WRONGTYPE", "is dropped", "Traceback", "401"):
        assert said in caplog.text
    hidden = [SECRET, base64.b64encode(json.dumps(SECRET).encode()).decode()[:40]]
    hidden += [part for token in tokens for part in token.split(".")]
    for person in PEOPLE.values():
        hidden += [person["secret"], *_seeds(person["secret"])]
    assert len(tokens) >= 4
    assert not [text for text in hidden if text in caplog.text]


def _seeds(secret: str) -> list[str]:
    """Return what a secret of hexadecimal may look like, or runs of the words of another."""
    if secret.startswith("0x"):
        return [secret[2:], repr(bytes.fromhex(secret[2:]))[2:-1]]
    words = secret.split()
    return [" ".join(words[start : start + 3]) for start in range(len(words) - 2)]
