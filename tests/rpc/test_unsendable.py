"""Values that no codec carries: they fail the call that holds them, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from wsmux import rpc

from ..helpers.rpc.clients import session_of
from ..helpers.rpc.four_kinds import KINDS, Part, answer, begun, staged
from ..helpers.rpc.procedures import WAIT
from ..helpers.tables import each_case

FAILED = "UNCAUGHT_ERROR: the handler failed"
HALF = "\ud800"  # of a pair: no UTF-8, so no msgpack

SMALL = 16 * 1024
LIMITED = rpc.Options(max_size=SMALL)
LONG = 70_000  # characters of a name for which no envelope has room


def responds(part: Part) -> Any:
    """Answer, or write, what the init names."""
    values = {
        "odd": object(),
        "large": "x" * SMALL,
        "larger": "x" * 100 * SMALL,
        "plain": 1,
    }
    value = values[part.init]
    if part.responses is not None:
        part.responses.write(value)
        return None
    return value


@contextmanager
def met(act: Callable[[Part], Any], codec: str = "msgpack", **serving: Any) -> Iterator[rpc.Client]:
    """Yield a client of a server, both with the same small limit."""
    errors = [rpc.ErrorSchema("BAD")]
    services = [staged(act, errors=errors)]
    with (
        rpc.serve(services, codec=codec, options=LIMITED, **serving) as server,
        rpc.connect(server.url, codec=codec, options=LIMITED) as client,
    ):
        yield client


@pytest.fixture(params=["json", "msgpack"])
def client(request: pytest.FixtureRequest) -> Iterator[rpc.Client]:
    with met(responds, request.param) as client:
        yield client


@pytest.mark.parametrize("value", ["odd", "large", "larger"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_response_that_cannot_be_sent_fails_its_call_alone(
    kind: rpc.Kind, value: str, client: rpc.Client
) -> None:
    with begun(client, rpc.Kind.STREAM, "plain") as other:
        assert isinstance(other, rpc.StreamCall)
        with pytest.raises(rpc.RiverError, match=FAILED):
            answer(client, kind, value)
        assert other.read() == 1
        session = session_of(client).session_id
        assert answer(client, kind, "plain") in (1, [1])
        assert session_of(client).session_id == session


@pytest.mark.parametrize("kind", KINDS)
def test_an_init_that_cannot_be_sent_fails_its_call_alone(
    kind: rpc.Kind, client: rpc.Client
) -> None:
    with pytest.raises(rpc.EncodeError):
        answer(client, kind, object())
    assert answer(client, kind, "plain") in (1, [1])
    assert session_of(client).calls == 0


def test_a_request_that_cannot_be_sent_leaves_its_call(client: rpc.Client) -> None:
    with begun(client, rpc.Kind.UPLOAD, "plain") as upload:
        assert isinstance(upload, rpc.Upload)
        for odd in (object(), "x" * SMALL, "x" * 100 * SMALL):
            with pytest.raises(rpc.EncodeError):
                upload.write(odd)
        upload.write(1)
        assert upload.finish() == 1


@pytest.mark.parametrize("name", ["x" * LONG, HALF], ids=["long", "half"])
def test_a_name_that_cannot_be_sent_leaves_no_call_behind(name: str) -> None:
    with met(responds) as client:
        with pytest.raises(rpc.EncodeError):
            client.rpc(name, "rpc", None, WAIT)
        assert client.rpc("test", "rpc", "plain", WAIT) == 1
        assert session_of(client).calls == 0


# Errors


def raises(part: Part) -> None:
    """Raise what the init names."""
    errors = {
        "extra": rpc.RiverError("BAD", "as declared", object()),
        "message": rpc.RiverError("BAD", HALF),
        "undeclared": rpc.RiverError("WORSE", HALF),
        "long": LookupError("x" * SMALL),
    }
    raise errors[part.init]


@each_case
@pytest.mark.parametrize("exposed", [False, True])
@pytest.mark.parametrize("error", ["extra", "message", "undeclared", "long"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_that_cannot_be_sent_is_an_uncaught_one(
    kind: rpc.Kind, error: str, exposed: bool
) -> None:
    with (
        met(raises, expose_errors=exposed) as client,
        pytest.raises(rpc.RiverError, match="UNCAUGHT_ERROR"),
    ):
        answer(client, kind, error)


def test_a_reason_to_cancel_that_cannot_be_sent_cancels_nothing() -> None:
    def act(part: Part) -> str:
        with pytest.raises(rpc.EncodeError):
            part.ctx.cancel(HALF)
        return "not cancelled"

    with rpc.serve([staged(act)]) as server, rpc.connect(server.url) as client:
        assert client.rpc("test", "rpc", None, WAIT) == "not cancelled"
        with begun(client, rpc.Kind.UPLOAD) as upload:
            with pytest.raises(rpc.EncodeError):
                upload.cancel(HALF)
            assert isinstance(upload, rpc.Upload)
            assert upload.finish() == "not cancelled"
