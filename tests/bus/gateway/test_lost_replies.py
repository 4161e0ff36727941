"""Replies of Redis that are lost after the command was executed: nothing stays behind."""

from __future__ import annotations

import pytest

from wsmux.bus.client import Client
from wsmux.bus.gateway.gateway import Peer

from ...helpers.bus.clients import ALICE
from ...helpers.bus.cutting_redis import CuttingRedis
from ...helpers.bus.gateway_programs import Caller, Service, database
from ...helpers.bus.gateways import lists
from ...helpers.bus.people import Table
from ...helpers.bus.scripted_relay import StageRelay
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for


def test_a_request_whose_taking_was_not_confirmed_is_taken_again(
    server: RedisServer, relay: StageRelay, twins: Table, bob: Client, caller: Caller
) -> None:
    with (
        CuttingRedis(database(server, 1), b"BLMOVE", b'"cmd"', 2) as cutting,
        Peer(ALICE.identity, relay.url, twins, cutting.url, twin=1, update=False),
    ):
        answers = [caller.push("echo", [2], number) for number in range(20)]
        assert [caller.answer(ret)["dat"] for ret in answers] == [b"%d" % n for n in range(20)]
        assert cutting.cut == 2
        wait_for(lambda: lists(server, 1) == {})
        assert all(not caller.redis.exists(ret) for ret in answers)  # answered once


@pytest.mark.parametrize("times", [1, 3])
def test_a_response_whose_taking_was_not_confirmed_is_taken_again(
    server: RedisServer, relay: StageRelay, twins: Table, caller: Caller, asker: Client, times: int
) -> None:
    with (
        CuttingRedis(database(server, 1), b"BLMOVE", b'"dst"', times) as cutting,
        Peer(ALICE.identity, relay.url, twins, cutting.url, twin=1, update=False),
        Service(database(server, 1), "same"),
    ):
        assert [asker.call(1, "same", number) for number in range(10)] == list(range(10))
        assert cutting.cut == times
        wait_for(lambda: "msgbus.system.reply.taken" not in lists(server, 1))
