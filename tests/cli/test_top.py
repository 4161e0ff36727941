"""Have ``wsmux top`` show a debug page, as a user would."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.cli import top, top_cluster, top_rows
from wsmux.cli.main import main
from wsmux.cli.tokens import VARIABLE
from wsmux.cluster import Cluster
from wsmux.diagnostics import status_socket
from wsmux.diagnostics.status import SESSION_FIELDS, document

from ..helpers.broken_setups import answering as saying
from ..helpers.certificates import Certificates
from ..helpers.cluster_nodes import asked
from ..helpers.commands import PATIENCE, command, run
from ..helpers.inside import record_of
from ..helpers.joined_streams import fill, open_pair
from ..helpers.proxies import playing
from ..helpers.redis_server import RedisServer, redis_server
from ..helpers.rpc.four_kinds import Held, begun
from ..helpers.waiting import wait_for
from ..helpers.werkzeug_server import TOKEN, shown

redis = pytest.fixture(scope="module", name="redis")(redis_server)

# Seconds after which a server looks whether it is to shut down.
POLL = 0.01


@pytest.fixture(autouse=True)
def token_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)


@contextmanager
def answering(status: int, body: bytes, headers: dict[str, str] | None = None) -> Iterator[str]:
    """Serve one answer to everything; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(POLL,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def stalled() -> Iterator[tuple[wsmux.Connection, int]]:
    """Return a connection on which bytes lie unread, and how many."""
    client, server = wsmux.pair()
    with client, server:
        near, far = open_pair(client, server)
        size = fill(near)
        wait_for(lambda: record_of(far).buffer.size == size)
        wait_for(lambda: server.explain()[0].seconds > 0)
        yield server, size


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["top", *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_look_shows_connections_and_what_is_stalled(
    capsys: pytest.CaptureFixture[str], stalled: tuple[wsmux.Connection, int]
) -> None:
    connection, size = stalled
    with shown(connection) as url:
        status, out, err = told(capsys, "--once", url)
    assert (status, err) == (0, "")
    title, columns, row, _, note = out.splitlines()
    assert "1 connections, 1 streams, 1 stalled" in title
    assert columns.split() == list(top_rows.COLUMNS)
    assert row.split()[:3] == [connection.name, "wsmux", "-"]
    assert "256 KiB" in row
    assert note.startswith(f"{connection.name}: {size} bytes lie unread on stream 0")
    assert "\x1b" not in out


def test_a_look_shows_sessions_below(
    capsys: pytest.CaptureFixture[str], stalled: tuple[wsmux.Connection, int]
) -> None:
    held = Held()
    quiet = rpc.Options(heartbeat_interval=PATIENCE)  # heartbeats are to be acknowledged, too
    with (
        rpc.serve([held.service], options=quiet) as server,
        rpc.connect(server.url, client_id="web-7") as client,
        shown(stalled[0], server) as url,
    ):
        upload = begun(client, rpc.Kind.UPLOAD)
        assert held.part is not None  # its handler runs
        upload.write("x" * 20_000)  # type: ignore[union-attr]
        wait_for(lambda: server.list_sessions()[0].unread_messages == 1)
        wait_for(lambda: server.list_sessions()[0].unacknowledged_messages == 0)
        secret = server.list_sessions()[0].session_id
        status, out, err = told(capsys, "--once", url)
        upload.cancel()
        held.go.set()
    assert (status, err) == (0, "")
    *_, note, empty, title, columns, row = out.splitlines()
    assert note.startswith(stalled[0].name)
    assert empty == ""
    assert title == "1 sessions, 1 connected, 1 calls, 1 handlers"
    assert columns.split() == " ".join(top.SESSION_COLUMNS).split()
    cells = [cell.strip() for cell in row.split("  ") if cell]
    assert cells[:3] == ["web-7", "server", "connected"]
    assert (cells[4], cells[6:]) == ("-", ["0", "1", "1", "0", "-", "1 (20 KiB)"])
    assert secret not in out


def test_a_look_comes_as_json_too(
    capsys: pytest.CaptureFixture[str], stalled: tuple[wsmux.Connection, int]
) -> None:
    with shown(stalled[0]) as url:
        status, out, _ = told(capsys, "--once", "--json", f"{url}data.json")
    assert status == 0
    assert json.loads(out)["connections"][0]["name"] == stalled[0].name


def test_the_token_may_stand_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "token").chmod(0o600)
    with shown() as url:
        status, out, _ = told(capsys, "--once", "--token-file", str(tmp_path / "token"), url)
    assert status == 0
    assert "0 connections" in out


def test_looks_go_on_with_rates_until_ctrl_c(stalled: tuple[wsmux.Connection, int]) -> None:
    with (
        shown(stalled[0]) as url,
        subprocess.Popen(
            command("top", "--interval", "0.05", url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        rows: list[list[str]] = []
        while len(rows) < 2:
            line = process.stdout.readline()
            assert line, "it ended"
            if line.startswith(stalled[0].name) and "lie unread" not in line:
                rows.append(line.split())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (130, "")
    first, second = rows
    assert first[first.index("-", 4)] == "-"
    assert "B" in second[4:8]


def test_on_a_terminal_each_look_is_drawn_over_the_last(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", sleep)
    with shown() as url:
        status, out, _ = told(capsys, url)
    assert status == 130
    assert out.count(top.REDRAW) == 2
    assert looks == [2.0, 2.0]


@pytest.mark.parametrize("trusted", ["authority", "anybody", "nobody"])
def test_https_is_asked_of_whom_it_may_trust(
    capsys: pytest.CaptureFixture[str], certificates: Certificates, trusted: str
) -> None:
    trust = {"authority": ["--cafile", str(certificates.authority)], "anybody": ["--insecure"]}
    with shown(ssl_context=certificates.server) as url:
        status, out, err = told(capsys, "--once", *trust.get(trusted, []), url)
    if trusted == "nobody":
        assert (status, out) == (1, "")
        assert "CERTIFICATE_VERIFY_FAILED" in err
    else:
        assert status == 0
        assert "0 connections" in out


# What is wrong


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (301, "redirections are not followed"),
        (401, "the token is wrong or missing"),
        (403, "allows nobody this way"),
        (404, "there is no debug page at this path"),
        (500, "answers 500: no page"),
    ],
)
def test_a_refusal_is_told_with_status_2(
    capsys: pytest.CaptureFixture[str], status: int, why: str
) -> None:
    with answering(status, b"", {"Location": "http://127.0.0.1:1/"}) as url:
        code, out, err = told(capsys, "--once", url)
    assert (code, out) == (2, "")
    assert why in err


def test_a_wrong_token_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with shown() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "another-token")
        code, out, err = told(capsys, "--once", url)
    assert (code, out) == (2, "")
    assert "give it in WSMUX_TOKEN" in err


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"version": 1}',
    ],
    ids=lambda body: repr(body[:10]),
)
def test_another_page_is_no_debug_page(capsys: pytest.CaptureFixture[str], body: bytes) -> None:
    with answering(200, body) as url:
        code, out, err = told(capsys, "--once", url)
    assert (code, out) == (2, "")
    assert err.endswith("is not a debug page of wsmux\n")


def test_an_answer_without_end_is_not_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps(good_document()).encode()
    monkeypatch.setattr(top, "MAX_ANSWER", len(body))
    with answering(200, body) as url:
        assert told(capsys, "--once", url)[0] == 0
    with answering(200, body + b" ") as url:
        code, _, err = told(capsys, "--once", url)
    assert code == 2
    assert "is not a debug page of wsmux" in err


def test_another_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, b'{"version": 9, "stalled_after": 1}') as url:
        code, _, err = told(capsys, "--once", url)
    assert code == 2
    assert "the page is of version 9, this is for 1" in err


def good_document() -> dict[str, Any]:
    client, server = wsmux.pair()
    with client, server:
        return document([server], 1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("connections", 5),
        ("connections", [{}]),
        ("totals", None),
        ("process", 1e999),
        ("sessions", 5),
        ("sessions", [{}]),
    ],
)
def test_numbers_that_are_none_are_no_traceback(
    capsys: pytest.CaptureFixture[str], name: str, value: object
) -> None:
    body = json.dumps(good_document() | {name: value}).encode()
    with answering(200, body) as url:
        code, out, err = told(capsys, "--once", url)
    assert (code, out) == (1, "")
    assert "tells something that this does not understand" in err


def test_what_the_server_says_cannot_draw_on_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told_by = good_document()
    told_by["connections"][0]["name"] = "\x1b[2Jhello\n" * 100
    told_by["connections"][0]["findings"] = [{"text": "\x1b]0;title\x07", "stalled": True}]
    with answering(200, json.dumps(told_by).encode()) as url:
        code, out, _ = told(capsys, "--once", url)
    assert code == 0
    assert "\x1b" not in out
    assert "\x07" not in out
    assert max(map(len, out.splitlines())) < 600


def test_many_notes_and_hidden_connections_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told_by = good_document() | {"connections_left_out": 7}
    finding = {"text": "something stands still", "stalled": True}
    told_by["connections"][0]["findings"] = [finding] * (top.MAX_NOTES + 3)
    with answering(200, json.dumps(told_by).encode()) as url:
        _, out, _ = told(capsys, "--once", url)
    assert out.count("something stands still") == top.MAX_NOTES
    assert out.endswith("3 more\n")
    assert "7 more connections" in out


def with_sessions(**fields: Any) -> dict[str, Any]:
    """Return a document with one session."""
    document = good_document()
    numbers = dict.fromkeys(SESSION_FIELDS, 0) | {"client_id": "c", "role": "client"}
    return document | {"sessions": [numbers | {"state": "connected", "ends_in": None} | fields]}


def test_a_session_without_a_connection_tells_how_long_it_waits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    waits = {"state": "waiting_for_reconnect", "state_age": 12.25, "ends_in": 47.75}
    told_by = with_sessions(**waits, age=7200.0, connections=3, unacknowledged_messages=2)
    with answering(200, json.dumps(told_by | {"sessions_left_out": 7}).encode()) as url:
        _, out, _ = told(capsys, "--once", url)
    title, _, row, more = out.splitlines()[-4:]
    assert title.startswith("8 sessions, ")
    cells = [cell.strip() for cell in row.split("  ") if cell]
    assert cells[2:7] == ["waiting for reconnect", "12.2 s", "47.8 s", "2 h", "2"]
    assert "2 (0 B)" in cells
    assert more == "7 more sessions"


def test_what_a_session_says_cannot_draw_on_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told_by = with_sessions(client_id="\x1b[2Jhello\n" * 100, state="\x1b[2J", role="\x07")
    with answering(200, json.dumps(told_by).encode()) as url:
        code, out, _ = told(capsys, "--once", url)
    assert code == 0
    assert "\x1b" not in out
    assert "\x07" not in out


def test_a_document_of_an_earlier_version_has_no_sessions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ("sessions", "sessions_left_out", "session_totals")
    told_by = {name: value for name, value in good_document().items() if name not in names}
    with answering(200, json.dumps(told_by).encode()) as url:
        code, out, _ = told(capsys, "--once", url)
    assert code == 0
    assert "sessions" not in out


def test_a_server_that_is_not_there_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, b"") as url:
        pass
    code, _, err = told(capsys, "--once", url)
    assert code == 1
    assert "refused" in err


def test_a_server_that_does_not_answer_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}/"
        code, _, err = told(capsys, "--once", "--timeout", "0.05", url)
    assert code == 1
    assert "did not answer in 0.05 s" in err


@pytest.mark.parametrize("url", ["http://a..b/", f"http://{'x' * 70}.y/"])
def test_a_name_that_is_none_is_told(capsys: pytest.CaptureFixture[str], url: str) -> None:
    code, _, err = told(capsys, "--once", url)
    assert code == 2
    assert "is not a host name" in err


@pytest.mark.parametrize("given", ["two words", "tök", "\x01"])
def test_a_token_that_fits_no_header_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: str
) -> None:
    (tmp_path / "token").write_text(f"a{given}b")
    (tmp_path / "token").chmod(0o600)
    code, _, err = told(
        capsys, "--once", "--token-file", str(tmp_path / "token"), "http://127.0.0.1:1/"
    )
    assert code == 2
    assert "a token has no spaces" in err


def test_what_is_not_http_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with playing(saying(b"SSH-2.0-OpenSSH\r\n\r\n")) as port:
        code, _, err = told(capsys, "--once", f"http://127.0.0.1:{port}/")
    assert code == 2
    assert "does not speak HTTP" in err


@pytest.mark.parametrize(
    ("passed", "text"),
    [(0, "0.0 s"), (99.9, "99.9 s"), (120, "2 min"), (7200, "2 h"), (1e6, "278 h")],
)
def test_times_are_short(passed: float, text: str) -> None:
    assert top._time(passed) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (20 * 1024, "20 KiB"),
        (2**50, "1048576 GiB"),
    ],
)
def test_sizes_are_short(count: float, text: str) -> None:
    assert top_rows.size_text(count) == text


def test_paths_are_quoted_and_lead_to_the_numbers() -> None:
    assert top.page("http://h/a b/ü").path == "/a%20b/%C3%BC/data.json"
    assert top.page("https://h").path == "/data.json"
    assert top.page("https://h/x.json").path == "/x.json"


# Processes


def test_a_process_of_the_same_user_is_shown(
    capsys: pytest.CaptureFixture[str], stalled: tuple[wsmux.Connection, int]
) -> None:
    with wsmux.LiveSocket(stalled[0], stalled_after=1e-9):
        status, out, err = told(capsys, "--once", str(os.getpid()))
    assert (status, err) == (0, "")
    assert out.startswith(f"process {os.getpid()}: 1 connections, 1 streams, 1 stalled")


def test_a_server_of_the_command_line_is_shown_while_it_serves() -> None:
    with subprocess.Popen(
        command("serve", "--echo", "--live"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        headers = {"Authorization": f"Bearer {TOKEN}"}  # WSMUX_TOKEN is the server's, too
        with wsmux.connect(process.stdout.readline().strip(), headers=headers), process:
            done = run("top", "--once", str(process.pid))
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith(b"process %d: 1 connections" % process.pid)
            process.send_signal(signal.SIGINT)
        assert process.returncode == 130
    assert run("top", "--once", str(process.pid)).returncode == 2


def test_a_process_that_publishes_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = told(capsys, "--once", str(os.getpid()))
    assert (status, out) == (2, "")
    assert f"process {os.getpid()} publishes nothing: it needs a wsmux.LiveSocket" in err


def test_a_process_that_does_not_answer_is_given_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "mute.sock"
    monkeypatch.setattr(status_socket, "socket_path", lambda pid, user: path)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen(0)
        status, _, err = told(capsys, "--once", "--timeout", "0.05", "123")
        assert status == 1
        assert "process 123 did not answer in 0.05 s" in err
        status, _, err = told(capsys, "--once", "--timeout", "0.05", "123")  # the first still waits
        assert status == 1
        assert "process 123 has too many status clients" in err


# Clusters


def test_all_processes_of_a_cluster_are_shown(
    capsys: pytest.CaptureFixture[str],
    stalled: tuple[wsmux.Connection, int],
    redis: RedisServer,
) -> None:
    connection, _ = stalled
    with Cluster(redis.url) as one, Cluster(redis.url) as two, two.member(connection, "user:1"):
        asked(one, two)
        ids = {one.node, two.node}
        status, out, err = told(capsys, "--once", "--cluster", redis.url, "--timeout", "60")
        _, as_json, _ = told(capsys, "--once", "--json", "--cluster", redis.url)
    assert (status, err) == (0, "")
    title, columns, *rows = out.split("\n\n")[0].splitlines()
    assert title.startswith("cluster default: 2 processes, 0 without an answer, 1 connections, ")
    assert columns.split() == list(top_cluster.PROCESS_COLUMNS)
    of = {row.split()[2]: row.split() for row in rows}
    assert set(of) == {each[:8] for each in ids}
    (node,) = (name for name, row in of.items() if row[-1] == "user:1")
    assert of[node][:2] == [socket.gethostname(), str(os.getpid())]
    _, columns, row = out.split("\n\n")[1].splitlines()
    assert columns.split() == ["node", *top_rows.COLUMNS]
    assert row.split()[:2] == [node, connection.name]
    seen = json.loads(as_json)
    assert {each["node"] for each in seen["nodes"]} == ids


def good_cluster() -> dict[str, Any]:
    """Return what a cluster of one process with one connection tells."""
    client, server = wsmux.pair()
    with client, server, Cluster() as cluster, cluster.member(server, "user:1"):
        return cluster.status().document()


def test_a_process_that_does_not_answer_is_shown_with_the_reason() -> None:
    seen = good_cluster()
    (node,) = seen["nodes"]
    node |= {"status": None, "why": "its process may stand still", "pid": 4711}
    text = top_cluster.shown(seen, None)
    assert "1 processes, 1 without an answer, 0 connections" in text
    assert text.splitlines()[2].endswith(" -  user:1")
    who = f"{socket.gethostname()} 4711 ({node['node'][:8]})"
    assert text.endswith(f"\n\n{who}: its process may stand still")


def test_rates_are_those_of_the_same_process() -> None:
    before = good_cluster()
    (node,) = before["nodes"]
    later = json.loads(json.dumps(before))
    status = later["nodes"][0]["status"]
    status["clock"] += 2.0
    status["totals"]["bytes_sent"] += 4096
    status["connections"][0]["bytes_sent"] += 4096
    first, second = top_cluster.shown(before, None), top_cluster.shown(later, before)
    assert "2.0 KiB" not in first
    assert second.count("2.0 KiB") == 2
    node["status"]["process"] += 1  # another process, whose numbers are no earlier ones
    assert "2.0 KiB" not in top_cluster.shown(later, before)
    node["status"] = None  # it had not answered
    assert "2.0 KiB" not in top_cluster.shown(later, before)


def test_what_stalls_stands_first_and_what_is_left_out_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(top_cluster, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(top_cluster, "MAX_NOTES", 3)
    seen = good_cluster() | {"nodes_left_out": 4}
    (node,) = seen["nodes"]
    node |= {"members": 9, "host": None, "pid": None, "renewed": 4.25}
    status = node["status"]
    found = [{"text": "it stands still", "stalled": True}] * 5
    (quiet,) = status["connections"]
    halted = quiet | {"name": "halted", "stalled": 7.0, "findings": found}
    status["connections"] = [quiet, quiet, halted]
    status["connections_left_out"] = 2
    text = top_cluster.shown(seen, None)
    table, connections, notes = text.split("\n\n")
    assert "5 processes, 0 without an answer, 5 connections, 0 streams, 1 stalled" in table
    assert "? ?" in table
    assert "4.2 s" in table
    assert "user:1 of 9" in table
    assert table.endswith("4 more processes")
    assert connections.splitlines()[2].split()[1] == "halted"
    assert connections.endswith("3 more connections")
    assert notes.splitlines() == [f"{node['node'][:8]} halted: it stands still"] * 3 + ["2 more"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("connections", 5), ("connections", [{}]), ("totals", None), ("sessions", None)],
)
def test_one_process_that_tells_nonsense_hides_no_other(name: str, value: object) -> None:
    seen, other = good_cluster(), good_cluster()
    seen["nodes"] += other["nodes"]
    seen["nodes"][0]["status"][name] = value
    seen["nodes"][0]["names"] = ["\x1b[2J"]
    text = top_cluster.shown(seen, None)
    assert "2 processes, 1 without an answer, 1 connections" in text
    assert text.endswith(top_cluster.NOT_UNDERSTOOD)
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name what to show"),
        (("123", "--cluster", "redis://127.0.0.1:1"), "name what to show"),
        (("--cluster", "http://127.0.0.1:1"), "expected the URL of a Redis"),
    ],
)
def test_what_to_show_is_one_thing(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    status, out, err = told(capsys, "--once", *arguments)
    assert (status, out) == (2, "")
    assert said in err


def test_a_redis_that_is_away_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = told(capsys, "--once", "--cluster", "redis://127.0.0.1:1")
    assert (status, out) == (1, "")
    assert "Redis failed" in err
