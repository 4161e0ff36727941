"""A cluster runs copies of slow tasks; what the losers were at is ended."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from wsmux import rpc
from wsmux.spark import serve_data

from ..helpers.spark.servers import Seen, echo, offered
from ..helpers.spark.sessions import SETTINGS, WAIT, environment, printed
from ..helpers.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.hang_bound(900)]

# Copies are made of tasks that take longer than others, as soon as half are done.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


class Held:
    """Let a test see the one call that is not answered, and its end."""

    def __init__(self) -> None:
        self.calls = 0
        self.lock = threading.Lock()
        self.over = threading.Event()

    def service(self) -> rpc.Service:
        service = rpc.Service("held")

        @service.rpc()
        def once(ctx: rpc.Context, row: Any) -> Any:
            """Answer at once, but for the first call with row 50, which waits for its end."""
            with self.lock:
                first = row == 50 and not self.calls
                self.calls += row == 50
            if first:
                ctx.defer(self.over.set)
                ctx.ended.wait(WAIT)
            return row

        return service


def test_a_slow_task_loses_to_its_copy_and_is_ended(tmp_path: Path) -> None:
    needed = environment()
    from ..helpers.spark.standalone import cluster

    held = Held()
    options = rpc.Options(session_disconnect_grace=1.0)  # of workers that are killed
    services = [offered(Seen()), held.service()]
    settings = SETTINGS | SPECULATION | {"spark.task.maxFailures": "1"}
    with (
        cluster(needed, tmp_path) as master,
        serve_data(services=services, streams={"echo": echo}, rpc={"options": options}) as server,
    ):
        arguments = [master, server.url, json.dumps(settings), "speculated"]
        found = json.loads(
            printed("tests.helpers.spark.job", *arguments, environment=needed, timeout=WAIT)
        )
        wait_for(held.over.is_set, WAIT)
    assert found["called"] == found["streamed"] == 1000
    assert found["kept"] == [1000, 1000]
    assert found["speculated"] == [400, 400]  # nothing of the loser's
    assert held.calls == 2
