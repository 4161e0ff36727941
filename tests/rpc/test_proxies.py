"""Calls by name."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from collections.abc import AsyncIterable, Awaitable, Iterable, Iterator
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc.schema.document import read_schema, serialize

from ..helpers.rpc.procedures import WAIT, Gate, offered


@pytest.fixture
def server() -> Iterator[rpc.RpcServer]:
    gate = Gate()
    with rpc.serve([offered(gate)]) as server:
        yield server
        gate.opened.set()


SERVICES = [offered(Gate())]
SCHEMA = serialize(SERVICES)


@pytest.mark.parametrize(
    "schema",
    [SERVICES, SCHEMA, json.dumps(SCHEMA), json.dumps(SCHEMA).encode(), read_schema(SCHEMA)],
    ids=["services", "data", "text", "bytes", "read"],
)
def test_with_a_schema_each_call_has_the_shape_of_its_kind(
    schema: Any, server: rpc.RpcServer
) -> None:
    with rpc.connect(server.url, schema=schema) as client:
        assert client.test.same({"n": 1}, WAIT) == {"n": 1}
        assert list(client.test.count(3, WAIT)) == [0, 1, 2]
        with client.test.total(timeout=WAIT) as upload:
            upload.write(4)
            assert upload.finish() == 4
        with client.test.echo(timeout=WAIT) as stream:
            stream.write("there")
            assert stream.read() == "there"


def test_many_services_of_many_procedures() -> None:
    services = [rpc.Service(f"service{number}") for number in range(50)]
    for service in services:
        for number in range(50):
            service.rpc(name=f"procedure{number}")(
                lambda ctx, init, number=number: f"{ctx.service} {number} {init}"
            )
    with rpc.serve(services) as server, rpc.connect(server.url, schema=services) as client:
        assert client.service0.procedure49(1, WAIT) == "service0 49 1"
        assert client.service49.procedure0(2, WAIT) == "service49 0 2"


def test_without_a_schema_the_kind_is_said(server: rpc.RpcServer) -> None:
    with rpc.connect(server.url) as client:
        assert client.test.same(1, WAIT) == client.test.same.rpc(1, WAIT) == 1
        assert list(client.test.count.subscribe(3, WAIT)) == [0, 1, 2]
        with client.test.total.upload(timeout=WAIT) as upload:
            assert upload.finish() == 0
        with client.test.echo.stream(timeout=WAIT) as stream:
            stream.write("there")
            assert stream.read() == "there"


def test_odd_names_are_items(server: rpc.RpcServer) -> None:
    with rpc.connect(server.url, schema=SERVICES) as client:
        assert client["test"]["__class__"](None, WAIT) == "found by its name"


def test_a_wrong_name_is_told_with_the_right_ones(server: rpc.RpcServer) -> None:
    with rpc.connect(server.url, schema=SERVICES) as client:
        with pytest.raises(AttributeError, match="no service 'tests'; it has test"):
            client.tests.same()
        with pytest.raises(AttributeError, match="no procedure of test: 'some'; it has .*same"):
            client.test.some()


def test_without_a_schema_the_server_knows_what_there_is(server: rpc.RpcServer) -> None:
    with (
        rpc.connect(server.url) as client,
        pytest.raises(rpc.RiverError, match="couldn't find service tests"),
    ):
        client.tests.same(None, WAIT)


def test_names_are_shown_to_those_who_look() -> None:
    client = rpc.connect("ws://127.0.0.1:9/", schema=SERVICES)
    assert "test" in dir(client)
    assert "same" in dir(client.test)
    assert repr(client.test.count) == "<ProcedureProxy test.count: subscription>"
    assert repr(client.test).startswith("<ServiceProxy test of <Client ")
    client.close()


def test_descriptions_are_docstrings() -> None:
    service = rpc.Service("me")
    service.rpc(name="name", description="Return the name.")(lambda ctx, init: "")
    client = rpc.connect("ws://127.0.0.1:9/", schema=[service])
    assert client.me.name.__doc__ == "Return the name."
    client.close()


def test_a_client_has_no_private_services() -> None:
    """What looks for methods with underscores, as copying does, finds none."""
    client = rpc.connect("ws://127.0.0.1:9/")
    assert not hasattr(client, "__fspath__")
    assert not hasattr(client.test, "__fspath__")
    assert not hasattr(client, "_no_such_thing")
    with pytest.raises(TypeError, match="pickle"):
        copy.deepcopy(client)
    client.close()


def test_a_client_is_nothing_but_a_client() -> None:
    """Any attribute may be a service, but none makes it a future, an iterator or a container."""
    client = rpc.connect("ws://127.0.0.1:9/")
    for proxy in (client, client.test, client.test.same):
        assert not inspect.isawaitable(proxy)
        assert not asyncio.isfuture(proxy)
        for kind in (Awaitable, Iterable, AsyncIterable):
            assert not isinstance(proxy, kind)
        with pytest.raises(TypeError, match="not iterable"):
            iter(proxy)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="not a container|not iterable"):
            _ = "name" in proxy  # type: ignore[operator]
    client.close()


def test_a_client_is_the_result_of_a_coroutine_that_returns_it() -> None:
    client = rpc.connect("ws://127.0.0.1:9/")

    async def same(proxy: Any) -> Any:
        return proxy

    for proxy in (client, client.test, client.test.same):
        assert asyncio.run(same(proxy)) is proxy
    client.close()


def test_metadata_may_be_a_plain_value() -> None:
    service = rpc.Service("me")
    service.rpc(name="name")(lambda ctx, init: ctx.metadata)
    with (
        rpc.serve([service]) as server,
        rpc.connect(server.url, metadata={"token": 5}) as client,
    ):
        assert client.me.name(None, WAIT) == {"token": 5}
