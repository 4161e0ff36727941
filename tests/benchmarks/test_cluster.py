"""``python -m benchmarks --cluster``, and what it does not let pass."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import wsmux
from benchmarks.cluster import client
from benchmarks.cluster.asking import asking
from benchmarks.cluster.site import BASE, deliver, pattern
from benchmarks.measures import CLUSTER_MEASURES
from benchmarks.peers import find_peers
from benchmarks.processes import Worker
from benchmarks.targets import TARGETS
from wsmux.cluster import Cluster

from ..helpers.benchmark_commands import run
from ..helpers.programs import needs
from ..helpers.timeouts import WAIT


@pytest.mark.tools
@pytest.mark.hang_bound(600)
def test_every_figure_is_taken_and_judged() -> None:
    needs("redis-server")
    done = run("--cluster", "--repetitions", "1", "--json")
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    (each,) = result["passes"]
    assert (each["failures"], each["pinned"]) == ([], False)
    assert set(each["measures"]) == set(CLUSTER_MEASURES)
    assert {target["measure"] for target in result["targets"]} == set(CLUSTER_MEASURES)


def test_every_target_of_the_cluster_can_be_measured() -> None:
    targets = [target for target in TARGETS if target.measure in CLUSTER_MEASURES]
    assert len(targets) == len(CLUSTER_MEASURES)
    assert {find_peers()[target.variant].kind for target in targets} == {"cluster"}


class Well(BaseHTTPRequestHandler):
    """Answer so many questions, and no further ones."""

    answers = 1_000_000

    def do_GET(self) -> None:
        Well.answers -= 1
        self.send_response(200 if Well.answers >= 0 else 500)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_whoever_asks_for_health_tells_how_long_each_answer_took_or_why_there_was_none() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Well) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            with asking(url) as told:
                took = told()
            assert took
            assert all(each > 0 for each in took)
            Well.answers = 0
            with asking(url) as told, pytest.raises(OSError, match="500"):
                told()
        finally:
            server.shutdown()
            serving.join()


def test_it_is_told_beside_more_descriptors_than_select_takes() -> None:
    with ExitStack() as held, ThreadingHTTPServer(("127.0.0.1", 0), Well) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        held.callback(serving.join)
        held.callback(server.shutdown)
        for _ in range(1100):
            held.enter_context(open(os.devnull))
        url = f"http://127.0.0.1:{server.server_port}"
        Well.answers = 1_000_000
        with Worker("cluster.asking", "asking", url) as asker:
            assert asker.ask()


@pytest.fixture
def joined() -> Iterator[tuple[Cluster, wsmux.Connection]]:
    """Return a cluster of this process, and a client that has joined."""
    here, there = wsmux.pair()
    with here, there, Cluster() as cluster:
        cluster.join(there, f"{BASE}1")
        yield cluster, here


@pytest.mark.parametrize(
    ("name", "key", "right"),
    [("client:1", 7, True), ("client:2", 7, False), ("client:1", 8, False)],
)
def test_what_is_for_somebody_else_is_no_figure(
    joined: tuple[Cluster, wsmux.Connection], name: str, key: int, right: bool
) -> None:
    cluster, here = joined
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(deliver, cluster, f"{BASE}1", 7, client.SIZE, WAIT)
        if right:
            client._take(here, name, key)
            assert told.result(WAIT)["result"] == "sent"
        else:
            with pytest.raises(RuntimeError, match="got what is not for it"):
                client._take(here, name, key)
            assert told.result(WAIT)["result"] == "StreamReset"


def test_each_eight_bytes_say_whose_they_are_and_where_they_belong() -> None:
    whole = pattern(5, 0, 64)
    assert whole == pattern(5, 0, 24) + pattern(5, 24, 40)
    words = [whole[at : at + 8] for at in range(0, 64, 8)]
    words += [pattern(6, 0, 64)[at : at + 8] for at in range(0, 64, 8)]
    assert len(set(words)) == 16
