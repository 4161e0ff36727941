"""Client and server that disagree on what there was: what ends, what goes on, what is new."""

from __future__ import annotations

import pytest

from wsmux import rpc

from ..threads.waiting import wait_for
from .offers import WAIT, Gate, offered

# A port that nobody serves: the system never gives it away.
NOWHERE = "ws://127.0.0.1:9"


class TestCallsWithoutAConnection:
    def test_a_call_after_a_refusal_tries_again(self) -> None:
        """The I/O thread rests without an alarm then, and has to be told of the new wait."""
        refusals = ["first", "second"]

        def validate(metadata: object, before: object, client_id: str) -> object:
            if refusals:
                raise rpc.Rejection(refusals.pop(0))
            return metadata

        with (
            rpc.serve([offered(Gate())], validate=validate) as server,
            rpc.connect(server.url) as client,
        ):
            for text in ("first", "second"):
                with pytest.raises(rpc.RiverError, match=f"UNEXPECTED_DISCONNECT.*{text}"):
                    client.rpc("test", "same", 1, WAIT)
                wait_for(client._engine.idle.occupied)
            assert client.rpc("test", "same", 1, WAIT) == 1

    def test_a_call_that_may_not_connect_fails_after_the_grace(self) -> None:
        options = rpc.Options(session_disconnect_grace=0.05)
        with (
            rpc.connect(NOWHERE, connect_on_call=False, options=options) as client,
            pytest.raises(rpc.RiverError, match="no connection within the grace"),
        ):
            client.rpc("test", "same", 1, WAIT)
