"""Serve the live page and its numbers, to those who may see them; by Flask's test client.

What a browser makes of the page, ``tests/browser/test_debug_page.py`` shows.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

import wsmux
from wsmux import rpc
from wsmux.cluster import Cluster, Unreachable
from wsmux.diagnostics.status import Sources
from wsmux.flask import Mux, debug_blueprint

from ..helpers.carriers import Ends
from ..helpers.inside import record_of
from ..helpers.joined_streams import fill, open_pair
from ..helpers.tables import each_case
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for
from ..helpers.werkzeug_server import serving

TOKEN = "a token of some length"
PATHS = ["/debug/wsmux/", "/debug/wsmux/data.json"]
BOTH = pytest.mark.parametrize("path", PATHS)


def client_of(connections: Sources, **options: Any) -> FlaskClient:
    app = Flask("app")
    app.register_blueprint(debug_blueprint(connections, **options))
    return app.test_client()


def basic(password: str) -> dict[str, str]:
    given = base64.b64encode(f"anybody:{password}".encode()).decode()
    return {"Authorization": f"Basic {given}"}


def numbers(client: FlaskClient) -> dict[str, Any]:
    answer = client.get(PATHS[1], headers=basic(TOKEN))
    assert answer.status_code == 200
    return json.loads(answer.data)


@pytest.fixture
def ends() -> Iterator[Ends]:
    client, server = wsmux.pair()
    with client, server:
        yield Ends(client, server)


# Who may see it


@BOTH
def test_without_a_token_or_a_judge_nobody_sees_anything(path: str) -> None:
    client = client_of([])
    for headers in ({}, basic(TOKEN), basic("")):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 403
        assert "neither token= nor authorize=" in answer.text


@each_case
@BOTH
@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic(""),
        basic(TOKEN[:-1]),
        basic(f"{TOKEN}x"),
        basic("töken"),
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer something else"},
        {"Authorization": "Basic !!!"},
        {"Authorization": 'Digest username="anybody"'},
    ],
    ids=str,
)
def test_a_wrong_token_is_asked_for_again(path: str, headers: dict[str, str]) -> None:
    answer = client_of([], token=TOKEN).get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Basic ")
    assert TOKEN not in answer.text


@BOTH
@pytest.mark.parametrize("headers", [basic(TOKEN), {"Authorization": f"Bearer {TOKEN}"}])
def test_the_token_opens_the_page_and_the_numbers(path: str, headers: dict[str, str]) -> None:
    assert client_of([], token=TOKEN).get(path, headers=headers).status_code == 200


@BOTH
def test_a_token_in_the_address_does_not_count(path: str) -> None:
    answer = client_of([], token=TOKEN).get(path, query_string={"token": TOKEN})
    assert answer.status_code == 401


@BOTH
@pytest.mark.parametrize(("allowed", "status"), [(True, 200), (False, 403), (None, 403)])
def test_the_application_may_decide(path: str, allowed: bool | None, status: int) -> None:
    assert client_of([], authorize=lambda: allowed).get(path).status_code == status


def test_either_a_token_or_the_application_will_do() -> None:
    client = client_of([], token=TOKEN, authorize=lambda: False)
    assert client.get(PATHS[0]).status_code == 401
    assert client.get(PATHS[0], headers=basic(TOKEN)).status_code == 200
    client = client_of([], token=TOKEN, authorize=lambda: True)
    assert client.get(PATHS[0]).status_code == 200


@pytest.mark.parametrize("token", ["", "short"])
def test_a_token_that_can_be_guessed_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="at least 16 characters"):
        debug_blueprint([], token=token)


@pytest.mark.parametrize("after", [0.0, -1.0, float("nan")])
def test_the_time_must_be_one(after: float) -> None:
    with pytest.raises(ValueError, match="stalled_after must be above 0"):
        debug_blueprint([], token=TOKEN, stalled_after=after)


# The page


def test_the_page_may_run_its_own_script_and_nothing_else() -> None:
    answer = client_of([], token=TOKEN).get(PATHS[0], headers=basic(TOKEN))
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    for tag in ("script", "style"):
        [text] = re.findall(rf"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert "frame-ancestors 'none'" in policy


def test_the_page_brings_all_it_needs_and_makes_no_markup_of_data() -> None:
    page = client_of([], token=TOKEN).get(PATHS[0], headers=basic(TOKEN)).text
    assert not re.search(r"https?://|src=|@import|url\(", page)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", page)
    assert not re.search(r"\son\w+=|\sstyle=", page)


@BOTH
def test_nothing_of_it_is_kept(path: str) -> None:
    headers = client_of([], token=TOKEN).get(path, headers=basic(TOKEN)).headers
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_nothing_can_be_changed_by_it() -> None:
    client = client_of([], token=TOKEN)
    assert all(client.post(path, headers=basic(TOKEN)).status_code == 405 for path in PATHS)


# The numbers


def test_a_stalled_stream_is_told_as_stalled_with_the_reason(ends: Ends) -> None:
    near, far = open_pair(*ends)
    quiet = open_pair(*ends)
    size = fill(near)
    wait_for(lambda: record_of(far).buffer.size == size)
    client = client_of(ends.server, token=TOKEN, stalled_after=1e-9)
    wait_for(lambda: numbers(client)["connections"][0]["stalled"])
    [told] = numbers(client)["connections"]
    assert told["name"] == ends.server.name
    assert (told["role"], told["protocol"], told["streams"]) == ("server", "wsmux", 2)
    [finding] = told["findings"]
    assert (finding["cause"], finding["stream"]) == ("unread", str(near.id))
    assert finding["stalled"]
    streams = {stream["id"]: stream for stream in told["shown_streams"]}
    assert streams[str(near.id)]["stalled"] > 0
    assert streams[str(near.id)]["unread_bytes"] == size
    assert streams[str(quiet.near.id)]["stalled"] is None


def test_connections_that_have_ended_are_not_shown(ends: Ends) -> None:
    client = client_of(lambda: [*ends], token=TOKEN)
    assert len(numbers(client)["connections"]) == 2
    ends.client.abort()
    wait_for(lambda: numbers(client)["connections"] == [])


def test_a_mux_shows_its_own() -> None:
    app = Flask("served")
    mux = Mux(app)
    mux.route("/")(wsmux.Connection.wait_closed)
    assert (mux.connections, mux.stopping) == ([], False)
    with serving(app) as port, wsmux.connect(f"ws://127.0.0.1:{port}/"):
        wait_for(lambda: mux.connections)
        assert [each.name for each in mux.connections] == [
            each["name"] for each in numbers(client_of(mux, token=TOKEN))["connections"]
        ]
    mux.shutdown(0.0)
    assert mux.stopping


def test_a_route_of_river_shows_its_sessions() -> None:
    app = Flask("served")
    handler = rpc.flask(app, "/river", [rpc.Service("test")])
    with (
        serving(app) as port,
        rpc.connect(f"ws://127.0.0.1:{port}/river", client_id="c") as client,
    ):
        client.wait_connected(WAIT)
        (told,) = numbers(client_of(handler, token=TOKEN))["sessions"]
        assert (told["client_id"], told["state"]) == ("c", "connected")
        client.close()
        handler.shutdown()
    assert numbers(client_of(handler, token=TOKEN))["sessions"] == []


# A cluster

CLUSTER = "/debug/wsmux/cluster.json"


def test_a_cluster_is_offered_and_told_to_those_who_may_see_it(ends: Ends) -> None:
    with Cluster() as cluster, cluster.member(ends.server, "user:1"):
        client = client_of([], token=TOKEN, cluster=cluster, stalled_after=7.0)
        assert client.get(CLUSTER).status_code == 401
        answer = client.get(CLUSTER, headers=basic(TOKEN))
        assert answer.headers["Cache-Control"] == "no-store"
        told = json.loads(answer.data)
        page = client.get(PATHS[0], headers=basic(TOKEN)).text
    assert (told["version"], told["stalled_after"]) == (1, 7.0)
    (node,) = told["nodes"]
    assert node["names"] == ["user:1"]
    assert node["status"]["connections"][0]["name"] == ends.server.name
    assert '<html lang="en" data-cluster>' in page


def test_without_a_cluster_none_is_offered() -> None:
    client = client_of([], token=TOKEN)
    assert client.get(CLUSTER, headers=basic(TOKEN)).status_code == 404
    assert '<html lang="en">' in client.get(PATHS[0], headers=basic(TOKEN)).text


def test_a_cluster_whose_redis_is_away_is_told_as_such() -> None:
    class Away:
        def status(self, *, stalled_after: float) -> Any:
            raise Unreachable("Redis failed")

    answer = client_of([], token=TOKEN, cluster=Away()).get(CLUSTER, headers=basic(TOKEN))
    assert (answer.status_code, answer.text) == (503, "Redis failed\n")


def test_what_is_no_cluster_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a wsmux.cluster.Cluster, not str"):
        debug_blueprint([], token=TOKEN, cluster="redis://localhost")  # type: ignore[arg-type]
