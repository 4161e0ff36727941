"""``wsmux forward`` as a user runs it, through ``wsmux serve``."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

import wsmux

from ..helpers.commands import PATIENCE, command, run, run_here, running, served
from ..helpers.redis_server import RedisServer
from ..helpers.tunnel_inputs import GREETING, reply
from ..helpers.tunnel_server import Echo, connected, receive_all, tunnels

ALLOWED = ("--allow-forward", "127.0.0.1:*", "--allow-listen", "127.0.0.1:*")


@contextmanager
def forwarding(url: str, *arguments: str) -> Iterator[dict[str, list[list[str]]]]:
    """Run the command; yield where it listens, as its line of JSON has it."""
    with running("forward", url, "--json", *arguments) as line:
        yield json.loads(line)


def echoed(place: str, data: bytes) -> bytes:
    with connected(place) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        return receive_all(sock)


def test_local_remote_and_socks_reach_their_places() -> None:
    with (
        Echo() as echo,
        served(*ALLOWED) as url,
        forwarding(url, "-L", f"0:{echo.place}", "-R", f"0:{echo.place}", "--socks", "0") as told,
    ):
        for kind in ("local", "remote"):
            ((listen, to),) = told[kind]
            assert to == echo.place
            assert echoed(listen, b"there and back") == b"there and back"
        host, _, port = echo.place.rpartition(":")
        request = b"\x05\x01\x00\x01" + socket.inet_aton(host) + int(port).to_bytes(2, "big")
        (entrance,) = told["socks"]
        back = echoed(str(entrance), GREETING + request + b"through")
        assert back == b"\x05\x00" + reply(0) + b"through"


def test_a_redis_session_runs_through_unix_sockets(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    with (
        RedisServer(tmp_path) as server,
        tunnels(connect=["127.0.0.1:*"], listen=[f"unix:{far}"]) as gate,
        forwarding(
            gate.url,
            "-L",
            f"{near}:{server.url.split('/')[2]}",
            "-R",
            f"{far}:unix:{near}",
        ),
        # Through the server's Unix socket to ours, and through that back to the server's Redis.
        redis.Redis(unix_socket_path=str(far), socket_timeout=PATIENCE) as client,
    ):
        value = bytes(range(256)) * 4096
        with client.pipeline() as pipeline:
            pipeline.set("key", value).get("key").incr("count").rpush("list", *range(1000))
            assert pipeline.execute() == [True, value, 1, 1000]
        with client.pubsub() as subscription:
            subscription.subscribe("news")
            assert subscription.get_message(timeout=PATIENCE)
            assert client.publish("news", "told") == 1
            message = subscription.get_message(timeout=PATIENCE)
            assert message is not None
            assert message["data"] == b"told"
        with pytest.raises(redis.ResponseError):
            client.execute_command("NO-SUCH-COMMAND")


def test_the_lines_without_json_are_for_people() -> None:
    with (
        Echo() as echo,
        tunnels() as server,
        running("forward", server.url, "-L", f"0:{echo.place}") as line,
    ):
        assert line.startswith("local 127.0.0.1:")
        assert line.endswith(f" to {echo.place}")


def test_a_place_that_is_not_allowed_is_told_on_stderr() -> None:
    with tunnels() as server:
        process = subprocess.Popen(
            command("forward", server.url, "-L", "0:192.0.2.1:80", "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        ((listen, _),) = json.loads(process.stdout.readline())["local"]
        with connected(listen) as sock, pytest.raises(ConnectionResetError):
            sock.recv(1)
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE)
    assert "192.0.2.1:80 is not on the list of allowed destinations" in errors
    assert "Traceback" not in errors
    assert process.returncode == 143


def test_where_the_server_may_not_listen_it_fails_in_one_line() -> None:
    with tunnels(connect=["127.0.0.1:*"]) as server:
        done = run("forward", server.url, "-R", "0:127.0.0.1:80")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.count(b"\n") == 1
    assert b"addresses to listen on" in done.stderr


def test_a_server_without_tunnels_is_told() -> None:
    def echo(stream: wsmux.Stream) -> None:
        stream.write(stream.read(1000))

    with wsmux.serve(stream_handler=echo) as server:
        done = run_here("forward", server.url, "-R", "0:127.0.0.1:80")
    assert done.returncode == 1
    assert done.stderr.startswith(b"wsmux forward: ")
    assert b"Traceback" not in done.stderr


def test_the_header_reaches_the_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen(
            command("forward", f"ws://127.0.0.1:{listener.getsockname()[1]}/", "--socks", "0")
            + ["--header", "Authorization: Bearer token"],
            stderr=subprocess.PIPE,
        )
        sock, _ = listener.accept()
        with sock:
            assert b"\r\nAuthorization: Bearer token\r\n" in sock.recv(10_000)
            sock.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
            _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert b"401" in errors
