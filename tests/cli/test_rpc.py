"""``wsmux rpc`` against servers of this process."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import flask
import pytest

from wsmux import rpc
from wsmux.cli import rpc_json, rpc_schema
from wsmux.cli.files import deliver
from wsmux.cli.main import main, parser
from wsmux.cli.rpc_json import json_text, parse_json
from wsmux.config import MIB
from wsmux.rpc.codegen import formatting
from wsmux.rpc.codegen.generator import generate
from wsmux.rpc.schema.document import serialize
from wsmux.rpc.wire.values import BigInt

from ..helpers.certificates import Certificates
from ..helpers.commands import PATIENCE, command
from ..helpers.commands import run as run_apart
from ..helpers.ports import free_port
from ..helpers.rpc.procedures import WAIT, Gate, offered
from ..helpers.tables import each_case
from ..helpers.waiting import wait_for
from ..helpers.werkzeug_server import serving

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def services(gate: Gate) -> list[rpc.Service]:
    test = offered(gate)

    @test.rpc(init={"type": "Date"}, response={"type": "Date"})
    def date(ctx: rpc.Context, init: datetime) -> datetime:
        return init

    @test.rpc()
    def whoami(ctx: rpc.Context, init: Any) -> Any:
        return [ctx.client_id, ctx.metadata]

    @test.subscription()
    def held(ctx: rpc.Context, init: Any) -> Iterator[str]:
        ctx.defer(gate.over.set)
        yield "first"
        gate.opened.wait(WAIT)
        yield "second"
        ctx.ended.wait(WAIT)

    @test.stream(errors=[rpc.ErrorSchema("ODD")], request={"type": "number"})
    def evens(ctx: rpc.Context, init: Any, requests: rpc.Readable[int]) -> Iterator[Any]:
        for request in requests:
            odd = rpc.RiverError("ODD", f"{request} is odd")
            yield rpc.Err(odd) if request % 2 else request

    @test.upload()
    def first(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> Any:
        return requests.read()

    @test.stream()
    def deaf(
        ctx: rpc.Context, init: Any, requests: rpc.Readable[Any], responses: rpc.Writable[Any]
    ) -> None:
        ctx.defer(gate.over.set)
        gate.entered.set()
        ctx.ended.wait(WAIT)

    @test.stream()
    def taken(
        ctx: rpc.Context, init: Any, requests: rpc.Readable[Any], responses: rpc.Writable[Any]
    ) -> None:
        values = []
        try:
            for request in requests:
                gate.entered.set()
                values.append(request)
            gate.seen.append(values)
        except rpc.RiverError as error:
            gate.seen.append(error.code)

    @test.stream()
    def mute(
        ctx: rpc.Context, init: Any, requests: rpc.Readable[Any], responses: rpc.Writable[Any]
    ) -> None:
        responses.close()
        taken(ctx, init, requests, responses)

    @test.stream(request={"type": "number"})
    def shut(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> Iterator[int]:
        yield from ()

    dotted = rpc.Service("a.b")
    dotted.rpc(name="c.d")(lambda ctx, init: "found")
    return [test, dotted]


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


# Requests that a handler of the server may leave unread; as many lines fit in a pipe.
UNREAD = 10_000


@pytest.fixture
def url(gate: Gate) -> Iterator[str]:
    # Whoever vanishes without a word is missed long after the test has failed.
    options = rpc.Options(session_disconnect_grace=600.0, unread_messages=UNREAD)
    with rpc.serve(services(gate), options=options, serve_schema=True) as server:
        yield server.url


@contextmanager
def answering(answer: bytes, *, ends: bool = True) -> Iterator[str]:
    """Yield the address of a server that gives every request one answer."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        held = []
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # shut down
                break
            held.append(connection)
            connection.settimeout(WAIT)
            connection.recv(65536)
            connection.sendall(answer)
            if ends:
                connection.close()
        for connection in held:
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}/path?query"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(WAIT)
        listener.close()


class Done(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs ``wsmux rpc`` in this process; ``stdin`` is text, or a file to read."""

    def run(*arguments: str, stdin: str | IO[str] | None = "") -> Done:
        handler = signal.getsignal(signal.SIGTERM)
        with holding(stdin) if isinstance(stdin, str) else nullcontext(stdin) as file:
            monkeypatch.setattr(sys, "stdin", file)
            try:
                status = main(["rpc", *arguments])
            finally:
                signal.signal(signal.SIGTERM, handler)
        return Done(status, *capsys.readouterr())

    return run


@contextmanager
def holding(text: str) -> Iterator[IO[str]]:
    """Yield a file to read a text from."""
    with tempfile.TemporaryFile("w+") as file:
        file.write(text)
        file.seek(0)
        yield file


@contextmanager
def open_pipe(data: str) -> Iterator[IO[str]]:
    """Yield a stdin that holds some data, and does not end behind it."""
    reading, writing = os.pipe()
    os.write(writing, data.encode())
    with open(reading) as file:
        try:
            yield file
        finally:
            os.close(writing)


@pytest.fixture
def terminal() -> Iterator[IO[str]]:
    """Yield a terminal on which somebody has typed a line."""
    ours, theirs = pty.openpty()
    os.write(ours, b"1\n")
    with open(theirs) as file:
        yield file
        os.close(ours)


# Calls of each kind


def test_an_rpc_prints_its_response(url: str, run: Run) -> None:
    assert run("call", url, "test.add", '{"n": 1}') == (0, '{"n":1}\n', "")


@pytest.mark.parametrize("init", [(), ("-",), ("null",)])
def test_an_absent_init_is_null(url: str, run: Run, init: tuple[str, ...]) -> None:
    assert run("call", url, "test.same", *init) == (0, "null\n", "")


def test_an_init_may_stand_in_a_file(url: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "init").write_text('["é"]\n')
    assert run("call", url, "test.same", f"@{tmp_path / 'init'}").out == '["é"]\n'


def test_a_subscription_prints_a_line_for_each_response(url: str, run: Run) -> None:
    assert run("call", url, "test.count", "3", "--kind", "subscription").out == "0\n1\n2\n"


@pytest.mark.parametrize("stdin", ["1\n2\n3", "1\n\n 2 \r\n3\n"])
def test_an_upload_sends_the_lines_of_stdin(url: str, run: Run, stdin: str) -> None:
    assert run("call", url, "test.total", "--kind", "upload", stdin=stdin) == (0, "6\n", "")


def test_an_upload_of_nothing_is_answered(url: str, run: Run) -> None:
    assert run("call", url, "test.total", "--kind", "upload").out == "0\n"


def test_an_upload_is_over_when_it_is_answered(url: str, run: Run) -> None:
    with open_pipe("1\n2\n") as stdin:
        assert run("call", url, "test.first", "--kind", "upload", stdin=stdin) == (0, "1\n", "")


def test_an_upload_that_gets_no_answer_fails(url: str, run: Run, gate: Gate) -> None:
    done = run("call", url, "test.mute", "--kind", "upload", stdin="1")
    assert done == (1, "", "wsmux rpc: test.mute ended without an answer\n")


def test_a_stream_answers_before_stdin_ends(url: str) -> None:
    arguments = command("rpc", "call", url, "test.echo", "--kind", "stream")
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"1\n")
    assert process.stdout.readline() == b"1\n"
    process.stdin.write(b"2\n")
    assert process.stdout.readline() == b"2\n"
    process.stdin.close()
    assert process.stdout.read() == b""
    assert process.wait(PATIENCE) == 0
    process.stdout.close()


def test_a_stream_reads_while_it_writes(run: Run, gate: Gate) -> None:
    # More than may be unread at the client; the server's handler may be as slow as it likes.
    text = "".join(f"{number}\n" for number in range(UNREAD + 1000))
    text += f'"{"x" * MIB}"\n' * (rpc.Options().unread_bytes // MIB + 8)
    with rpc.serve(services(gate), options=rpc.Options(unread_bytes=256 * MIB)) as server:
        done = run("call", server.url, "test.echo", "--kind", "stream", stdin=text)
    assert done == (0, text, "")


def test_a_stream_whose_requests_nobody_reads_ends(url: str, run: Run) -> None:
    with open_pipe("1\n" * (UNREAD + 1)) as stdin:
        done = run("call", url, "test.deaf", "--kind", "stream", stdin=stdin)
    behind = f"reader fell behind: Options.unread_messages is {UNREAD}"
    assert done == (1, "", f"CANCEL: {behind}\n")


def test_a_stream_goes_on_sending_when_the_server_has_ended_its_half(
    url: str, run: Run, gate: Gate
) -> None:
    assert run("call", url, "test.mute", "--kind", "stream", stdin="1\n2\n3").status == 0
    wait_for(lambda: gate.seen == [[1, 2, 3]])


def test_a_stream_on_a_terminal_ends_when_the_server_does(
    url: str, run: Run, terminal: IO[str]
) -> None:
    done = run("call", url, "test.mute", "--kind", "stream", stdin=terminal)
    assert done == (0, "", "")


def test_requests_need_a_stdin(url: str, run: Run) -> None:
    done = run("call", url, "test.total", "--kind", "upload", stdin=None)
    assert done.status == 1
    assert "stdin" in done.err


# Values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, 2.5, "x", null, true]}', {"a": [1, 2.5, "x", None, True]}),
        ('{"$t": "AAE="}', b"\0\1"),
        ('{"$b": "5"}', BigInt(5)),
        ('[{"$d": "2026-01-02T13:00:00+01:00"}]', [NOON]),
        ('"2026-01-02T12:00:00Z"', "2026-01-02T12:00:00Z"),
        ('{"$d": 1}', {"$d": 1}),
        ('"é"', "é"),
    ],
)
def test_json_is_read_in_the_forms_of_river(text: str, value: Any) -> None:
    read = parse_json(text.encode())
    assert (read, type(read)) == (value, type(value))


@each_case
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"1,2",
        b'1},"x":{',
        b"NaN",
        b"1e999",
        b'"\xff"',
        b'{"$t": "AAE"}',
        b'{"$b": "x"}',
        b'{"$d": "soon"}',
        b"[" * 100_000,
        b"[" * 101 + b"]" * 101,
    ],
)
def test_what_no_message_can_hold_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        parse_json(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2.5, "é", None, True]}, '{"a":[1,2.5,"é",null,true]}'),
        (b"\0\1", '{"$t":"AAE="}'),
        ([BigInt(5), 2**60, -(2**60)], f'[{{"$b":"5"}},{{"$b":"{2**60}"}},{{"$b":"-{2**60}"}}]'),
        (NOON, '"2026-01-02T12:00:00Z"'),
        ([float("nan"), float("-inf")], "[null,null]"),
        ("\x1b[2J\x9bm\u202e\U000e0001é", r'"\u001b[2J\u009bm\u202e\udb40\udc01é"'),
    ],
)
def test_values_are_written_in_the_forms_of_river(value: Any, text: str) -> None:
    assert json_text(value) == text


@pytest.mark.parametrize("codec", ["msgpack", "json", "protobuf"])
def test_bytes_and_bigints_come_back_as_they_went(gate: Gate, run: Run, codec: str) -> None:
    text = '[{"$t":"AAE="},{"$b":"5"},{"$b":"1152921504606846976"},"é"]\n'
    with rpc.serve([offered(gate)], codec=codec) as server:
        done = run("call", server.url, "test.same", text, "--codec", codec)
    assert done == (0, text, "")


def test_dates_are_sent_as_such(url: str, run: Run) -> None:
    done = run("call", url, "test.date", '{"$d": "2026-01-02T12:00:00Z"}')
    assert done == (0, '"2026-01-02T12:00:00Z"\n', "")


def test_half_a_surrogate_pair_can_be_printed(gate: Gate, run: Run) -> None:
    with rpc.serve([offered(gate)], codec="json") as server:
        done = run("call", server.url, "test.same", '"\\ud800"', "--codec", "json")
    assert done == (0, '"\\ud800"\n', "")


# Addresses and options


def test_plain_and_unix_sockets_are_called(gate: Gate, run: Run, tmp_path: Path) -> None:
    offers = services(gate)
    with rpc.serve(offers, transport="tcp") as server:
        assert run("call", server.url, "test.same", "1").out == "1\n"
    with rpc.serve(offers, path=str(tmp_path / "with space")) as server:
        assert run("call", server.url, "test.same", "2").out == "2\n"


def test_tls_needs_an_authority_or_no_care(
    gate: Gate, run: Run, certificates: Certificates
) -> None:
    with rpc.serve(services(gate), ssl_context=certificates.server, serve_schema=True) as server:
        for trust in (("--cafile", str(certificates.authority)), ("--insecure",)):
            assert run("call", server.url, "test.same", "1", *trust).out == "1\n"
            assert run("schema", server.url, *trust).status == 0
            page = server.url.replace("wss", "https")
            assert run("schema", page, *trust).status == 0
        refused = run("schema", server.url)
    assert refused.status == 1
    assert "certificate" in refused.err


def test_headers_are_sent_to_a_route_of_flask(gate: Gate, run: Run) -> None:
    app = flask.Flask(__name__)
    seen: list[list[str | None]] = []

    @app.before_request
    def look() -> None:
        seen.append([flask.request.headers.get(name) for name in ("x-one", "x-two")])

    with rpc.flask(app, "/river", services(gate), serve_schema=True), serving(app) as port:
        url = f"ws://127.0.0.1:{port}/river"
        further = ("--header", "X-One: 1", "--header", "X-Two:2: 3")
        assert run("schema", url, *further).status == 0
        assert run("call", url, "test.same", "1", *further).out == "1\n"
    assert seen == [["1", "2: 3"]] * 2


def test_options_may_stand_anywhere() -> None:
    parse = parser().parse_args
    call = ["ws://h/", "s.p"]
    for arguments in (["--codec", "json", *call, "-5"], [*call, "--codec", "json", "-5"]):
        args = parse(["rpc", "call", *arguments])
        assert (args.url, args.procedure, args.init, args.codec) == (*call, "-5", "json")
    assert parse(["rpc", "-vv", "call", *call]).verbose == 2
    assert parse(["rpc", "call", *call, "-v"]).verbose == 1
    assert parse(["rpc", "call", *call]).verbose == 0


def test_the_handshake_carries_what_is_told(gate: Gate, run: Run, tmp_path: Path) -> None:
    secret = tmp_path / "metadata"
    secret.write_text('{"token": 1}')
    with rpc.serve(services(gate), server_id="elsewhere", validate=lambda *told: told[0]) as server:
        arguments = ("call", server.url, "test.whoami", "--client-id", "me")
        there = ("--server-id", "elsewhere")
        assert run(*arguments, *there, "--metadata", "[1]").out == '["me",[1]]\n'
        assert run(*arguments, *there, "--metadata", f"@{secret}").out == '["me",{"token":1}]\n'
        assert run(*arguments, *there).out == '["me",null]\n'
        done = run(*arguments)
    assert done.status == 1
    refusal, hint = done.err.splitlines()
    assert refusal == "UNEXPECTED_DISCONNECT: the server identified itself as 'elsewhere'"
    assert "--server-id" in hint


# Failures


def test_a_declared_error_is_told_with_what_it_carries(url: str, run: Run) -> None:
    assert run("call", url, "test.fails", '"declared"') == (1, "", "BAD: as declared\n[1]\n")


@pytest.mark.parametrize(
    ("kind", "procedure"),
    [("rpc", "add"), ("upload", "nope"), ("subscription", "nope"), ("stream", "nope")],
)
def test_what_the_server_refuses_fails(url: str, run: Run, kind: str, procedure: str) -> None:
    with open_pipe("") as stdin:
        done = run("call", url, f"test.{procedure}", "--kind", kind, stdin=stdin)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("INVALID_REQUEST: ")


def test_responses_around_an_error_are_printed(url: str, run: Run) -> None:
    done = run("call", url, "test.evens", "--kind", "stream", stdin="2\n4\n5\n6\n")
    assert done == (1, "2\n4\n6\n", "ODD: 5 is odd\n")


def test_a_request_that_the_schema_forbids_fails(url: str, run: Run) -> None:
    done = run("call", url, "test.evens", "--kind", "stream", stdin='2\n"x"\n')
    error, extras = done.err.splitlines()
    assert done.status == 1
    assert error == "INVALID_REQUEST: message in request failed validation: must be number"
    assert json.loads(extras)["totalErrors"] == 1


def test_requests_refused_behind_the_last_response_fail(url: str, run: Run) -> None:
    over = threading.Event()
    reading, writing = os.pipe()

    def go_on() -> None:
        while not over.wait(0.001):
            os.write(writing, b'"x"\n')

    thread = threading.Thread(target=go_on)
    thread.start()
    with open(reading) as stdin:
        done = run("call", url, "test.shut", "--kind", "stream", stdin=stdin)
        over.set()
        thread.join(WAIT)
    os.close(writing)
    assert (done.status, done.out) == (1, "")
    sentence = "INVALID_REQUEST: message in request failed validation: must be number\n"
    assert done.err.startswith(sentence)


@pytest.mark.parametrize(
    ("kind", "procedure"), [("upload", "taken"), ("stream", "taken"), ("stream", "mute")]
)
@pytest.mark.parametrize(
    ("line", "sentence"),
    [("{", "line 2 of stdin is not JSON: "), ('{"$d": "2026-01-01"}', "without a time zone")],
)
def test_a_line_that_cannot_be_sent_cancels_the_call(
    url: str, run: Run, gate: Gate, kind: str, procedure: str, line: str, sentence: str
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"1\n")

    def go_on() -> None:
        assert gate.entered.wait(WAIT)
        os.write(writing, f"{line}\n2\n".encode())

    thread = threading.Thread(target=go_on)
    thread.start()
    with open(reading) as stdin:
        done = run("call", url, f"test.{procedure}", "--kind", kind, stdin=stdin)
    thread.join(WAIT)
    os.close(writing)
    assert done.status == 1
    assert done.err.startswith("wsmux rpc: ")
    assert sentence in done.err
    wait_for(lambda: gate.seen)
    assert gate.seen == ["CANCEL"]


def test_what_is_given_is_bounded(
    url: str, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rpc_json, "MAX_TEXT", 3)
    (tmp_path / "init").write_text("1234")
    for init, stdin in ((f"@{tmp_path / 'init'}", ""), ("1234", ""), ("123", "1\n1234")):
        done = run("call", url, "test.total", init, "--kind", "upload", stdin=stdin)
        assert done.status in (1, 2)
        assert "more than 3 bytes" in done.err
    assert run("call", url, "test.total", "123", "--kind", "upload", stdin="1\n123").out == "124\n"


def test_a_call_out_of_time_fails(url: str, run: Run) -> None:
    done = run("call", url, "test.hangs", "--timeout", "0.1")
    assert (done.status, done.out) == (1, "")
    assert "did not answer in time" in done.err


@pytest.mark.parametrize("procedure", ["echo", "mute"])
def test_a_stream_out_of_time_fails(url: str, run: Run, procedure: str) -> None:
    with open_pipe("") as stdin:
        done = run(
            "call", url, f"test.{procedure}", "--kind", "stream", "--timeout", "0.1", stdin=stdin
        )
    assert (done.status, done.out) == (1, "")
    assert "in time" in done.err


def test_a_server_that_is_not_there_is_named(run: Run) -> None:
    url = f"ws://127.0.0.1:{free_port()}/"
    done = run("call", url, "test.same", "--timeout", "0.1")
    assert done.status == 1
    assert f"{url} was not reached" in done.err


def test_a_missing_msgpack_is_named_with_what_to_install(url: str) -> None:
    done = run_apart("rpc", "call", url, "test.same", without=("msgpack",))
    assert done.returncode == 1
    assert b"pip install 'wsmux-streams[rpc]'" in done.stderr


def test_a_reader_of_stdout_that_goes_away_cancels_the_call(url: str, gate: Gate) -> None:
    process = subprocess.Popen(
        command("rpc", "call", url, "test.held", "--kind", "subscription"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b'"first"\n'
    process.stdout.close()
    gate.opened.set()
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (1, b"")
    assert gate.over.wait(WAIT)


@pytest.mark.parametrize(
    ("kind", "procedure"), [("rpc", "hangs"), ("subscription", "watch"), ("stream", "deaf")]
)
def test_ctrl_c_cancels_the_call(url: str, gate: Gate, kind: str, procedure: str) -> None:
    process = subprocess.Popen(
        command("rpc", "call", url, f"test.{procedure}", "--kind", kind),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert gate.entered.wait(WAIT)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (130, b"")
    assert gate.over.wait(WAIT)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nothing"],
        ["call"],
        ["call", "ws://127.0.0.1/"],
        ["call", "http://127.0.0.1/", "s.p"],
        ["call", "unix://relative", "s.p"],
        ["call", "unix:///", "s.p"],
        ["call", "tcp://127.0.0.1", "s.p"],
        ["call", "ws://127.0.0.1/", "p"],
        ["call", "ws://127.0.0.1/", ".p"],
        ["call", "ws://127.0.0.1/", "s.p", "--kind", "call"],
        ["call", "ws://127.0.0.1/", "s.p", "--codec", "xml"],
        ["call", "ws://127.0.0.1/", "s.p", "1", "2"],
        ["call", "ws://127.0.0.1/", "s.p", "{"],
        ["call", "ws://127.0.0.1/", "s.p", "--metadata", "{"],
        ["call", "ws://127.0.0.1/", "s.p", "--schema", "tcp://127.0.0.1:1"],
        ["call", "unix:///path", "s.p", "--header", "A: b"],
        ["schema"],
        ["schema", "tcp://127.0.0.1:1"],
        ["schema", "unix:///path"],
        ["schema", "schema.json"],
        ["codegen"],
        ["codegen", "unix:///path"],
        ["codegen", "schema.json", "--style", "pydantic"],
        ["codegen", "schema.json", "--line-length", "59"],
        ["codegen", "schema.json", "--check"],
        ["codegen", "schema.json", "--check", "-o", "-"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.status, done.out) == (2, "")
    assert "wsmux" in done.err
    assert ("usage: " in done.err) or (done.err.count("\n") == 1)


def test_a_file_that_holds_no_init_is_no_wrong_usage(run: Run, tmp_path: Path) -> None:
    (tmp_path / "init").write_text("{")
    for name in ("init", "missing"):
        done = run("call", "ws://127.0.0.1/", "s.p", f"@{tmp_path / name}")
        assert (done.status, done.out) == (1, "")
        assert str(tmp_path / name) in done.err


# Schemas


def test_a_schema_is_printed_as_it_is_served(url: str, run: Run, gate: Gate) -> None:
    done = run("schema", url)
    assert (done.status, done.err) == (0, "")
    assert done.out == json.dumps(serialize(services(gate)), indent=2) + "\n"


def test_a_schema_is_fetched_from_the_address_of_http_as_well(
    url: str, run: Run, tmp_path: Path
) -> None:
    page = f"http{url.removeprefix('ws')}"
    for action in ("schema", "codegen"):
        assert run(action, page) == run(action, url)
        assert run(action, page).status == 0
    path = tmp_path / "client.py"
    assert run("codegen", page.upper().replace("HTTP", "Http"), "-o", str(path)).status == 0
    assert run("codegen", page, "--header", "X: y", "-o", str(path), "--check").status == 0
    assert run("call", url, "test.count", "2", "--schema", page) == (0, "0\n1\n", "")


def test_an_address_of_http_that_gives_no_schema_is_refused_in_a_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(answer: bytes, *, ends: bool = True) -> str:
        with answering(answer, ends=ends) as url:
            timeout = str(WAIT if ends else 0.5)
            done = run("codegen", f"http{url.removeprefix('ws')}", "--timeout", timeout)
        assert (done.status, done.out) == (1, "")
        assert done.err.count("\n") == 1
        return done.err

    assert "a served schema must be JSON" in refused(OK + b"\r\n<html>")
    assert "no schema is served there" in refused(b"HTTP/1.1 404 Not Found\r\n\r\n")
    assert "time" in refused(OK + b"X-Header: never ", ends=False)
    monkeypatch.setattr(rpc_schema, "MAX_SIZE", 14)
    assert "more than 14 bytes" in refused(OK + b'\r\n{"services":{}}')
    assert "connection refused" in run("codegen", "http://127.0.0.1:1/").err.lower()


def test_a_schema_tells_the_kind_of_a_procedure(url: str, run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "schema.json"
    assert run("schema", url, "-o", str(saved)) == (0, "", "")
    for place in (url, str(saved)):
        done = run("call", url, "test.count", "2", "--schema", place)
        assert done == (0, "0\n1\n", "")
    assert run("call", url, "a.b.c.d", "--schema", url).out == '"found"\n'
    assert run("call", url, "test.count", "2", "--schema", url, "--kind", "rpc").out == "0\n"


def test_a_procedure_that_the_schema_lacks_is_wrong_usage(url: str, run: Run) -> None:
    done = run("call", url, "test.nope", "--schema", url)
    assert done.status == 2
    assert "test.add" in done.err


def test_a_server_without_a_schema_is_told_how_to_serve_one(gate: Gate, run: Run) -> None:
    with rpc.serve(services(gate)) as server:
        for arguments in (("schema",), ("codegen",), ("call", server.url, "s.p", "--schema")):
            done = run(*arguments, server.url)
            assert (done.status, done.out) == (1, "")
            assert "426" in done.err
            assert "serve_schema=True" in done.err


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (OK + b"\r\n<html>", "does not serve a River schema: a served schema must be JSON"),
        (OK + b"\r\n" + b"[" * 100_000, "nested too deeply"),
        (OK + b'\r\n{"services": {}, "x": 1e999}', "River schema"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/x\r\n\r\n", "127.0.0.1:1/x"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "404 Not Found: no schema is served there"),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "503 Busy\n"),
        (OK + b"Content-Length: 5\r\n\r\n{", "River schema"),
        (b"SSH-2.0-OpenSSH\r\n", "HTTP"),
        (b"", "HTTP"),
    ],
)
def test_what_is_no_schema_is_refused_in_a_sentence(run: Run, answer: bytes, sentence: str) -> None:
    with answering(answer) as url:
        done = run("schema", url)
    assert (done.status, done.out) == (1, "")
    assert sentence in done.err
    assert done.err.count("\n") == 1


def test_a_schema_is_bounded(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rpc_schema, "MAX_SIZE", 14)
    schema = b'{"services":{}}'
    saved = tmp_path / "schema.json"
    saved.write_bytes(schema)
    with answering(OK + b"\r\n" + schema) as url:
        assert "more than 14 bytes" in run("schema", url).err
        assert "more than 14 bytes" in run("codegen", str(saved)).err
        monkeypatch.setattr(rpc_schema, "MAX_SIZE", 15)
        assert run("schema", url).status == run("codegen", str(saved)).status == 0


def test_a_schema_that_comes_too_slowly_is_given_up(run: Run) -> None:
    with answering(OK + b"X-Header: never ", ends=False) as url:
        done = run("schema", url, "--timeout", "0.1")
    assert (done.status, done.out) == (1, "")
    assert "time" in done.err


# Generated clients


@pytest.mark.parametrize("style", ["typeddict", "dataclass"])
def test_a_generated_client_calls(url: str, run: Run, tmp_path: Path, style: str) -> None:
    path = tmp_path / "client.py"
    assert run("codegen", url, "-o", str(path), "--style", style) == (0, "", "")
    module = imported(path)
    with rpc.connect(url) as client:
        test = module.Test(client)
        init = {"n": 2} if style == "typeddict" else module.TestAddInit(n=2)
        assert test.add(init, timeout=WAIT) == (
            {"n": 2} if style == "typeddict" else module.TestAddResponse(n=2)
        )


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("generated", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generated"] = module
    spec.loader.exec_module(module)
    return module


def test_a_client_is_generated_from_what_was_saved(url: str, run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "schema.json"
    saved.write_text(json.dumps({"services": {}}))
    text = run("codegen", str(saved)).out
    assert text == generate({"services": {}})
    assert run("codegen", "-", stdin=saved.read_text()) == (0, text, "")
    wide = run("codegen", url, "--line-length", "120", "-o", "-").out
    assert max(map(len, wide.splitlines())) in range(89, 121)


@pytest.fixture
def no_ruff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formatting, "find_ruff", lambda: None)


@pytest.mark.usefixtures("no_ruff")
def test_a_client_is_generated_without_ruff(url: str, run: Run, gate: Gate) -> None:
    assert run("codegen", url) == (0, generate(serialize(services(gate))), "")


def test_a_client_is_laid_out_by_ruff(url: str, run: Run, gate: Gate) -> None:
    laid_out = generate(serialize(services(gate)), ruff=formatting.find_ruff())
    assert run("codegen", url) == (0, laid_out, "")
    assert laid_out != generate(serialize(services(gate)))


def test_a_ruff_that_fails_leaves_the_file_alone(
    url: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "client.py"
    path.write_text("precious")
    monkeypatch.setattr(formatting, "find_ruff", lambda: "/bin/false")
    done = run("codegen", url, "-o", str(path))
    assert (done.status, done.out) == (1, "")
    assert "/bin/false did not format the client" in done.err
    assert path.read_text() == "precious"


def test_a_check_compares_the_code_not_its_layout(
    url: str, run: Run, tmp_path: Path, gate: Gate
) -> None:
    path = tmp_path / "client.py"
    for ruff in (formatting.find_ruff(), None):
        text = generate(serialize(services(gate)), ruff=ruff)
        path.write_text(text)
        assert run("codegen", url, "-o", str(path), "--check") == (0, "", "")
        assert path.read_text() == text
    path.write_text(text.replace("class Test:", "class Tests:"))
    sentence = f"wsmux rpc: {path} is not what the schema gives: write it again\n"
    assert run("codegen", url, "-o", str(path), "--check") == (1, "", sentence)
    for data in (b"class", b"\0", b"\xff"):
        path.write_bytes(data)
        done = run("codegen", url, "-o", str(path), "--check")
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith(f"wsmux rpc: {path}: ")
        assert path.read_bytes() == data
    path.unlink()
    done = run("codegen", url, "-o", str(path), "--check")
    assert (done.status, done.out) == (1, "")
    assert str(path) in done.err
    assert not path.exists()


def test_a_wrong_schema_leaves_the_file_alone(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "client.py"
    path.write_text("precious")
    done = run("codegen", "-", "-o", str(path), stdin='{"services": 1}')
    assert done == (1, "", "wsmux rpc: services must be an object, but is 1\n")
    assert path.read_text() == "precious"
    done = run("call", "ws://127.0.0.1/", "s.p", "--schema", str(path))
    assert done.status == 1
    assert f"{path}: a served schema must be JSON" in done.err


# Files


def test_a_file_that_is_replaced_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    deliver("é\ud800", link)
    assert link.is_symlink()
    assert path.read_bytes() == "é\\ud800".encode()
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [path, link]


def test_a_device_is_written_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    deliver("text", pipe)
    assert os.read(reading, 100) == b"text"
    os.close(reading)
    assert pipe.is_fifo()


def test_a_file_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(self: Path, target: Path) -> None:
        raise OSError("no")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no"):
        deliver("new", path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
