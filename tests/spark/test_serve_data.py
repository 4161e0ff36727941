"""``wsmux serve-data`` at work: who may connect, and several processes on one port."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.exceptions import HandshakeError
from wsmux.spark import serve_data

from ..helpers.commands import PATIENCE, command, run, running
from ..helpers.spark.arrow_data import SCHEMA, ids, rows
from ..helpers.spark.bulk import call, get, put, schema_of, write_all
from ..helpers.waiting import wait_for

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WSMUX_TOKEN", raising=False)


def refused(*arguments: str, status: int = 2, **environment: str) -> str:
    done = run("serve-data", *arguments, env={**os.environ, **environment})
    assert (done.returncode, done.stdout) == (status, b"")
    return done.stderr.decode()


def test_other_machines_need_a_token(tmp_path: Path) -> None:
    words = refused(str(tmp_path), "--host", "0.0.0.0")
    assert "give --token-file or WSMUX_TOKEN" in words


def test_on_loopback_no_page_of_elsewhere_reaches_the_data(tmp_path: Path) -> None:
    """Not even one that had its own name resolve to this machine, which would be same-origin."""
    assert "every page" in refused(str(tmp_path), "--origin", "*")
    with running("serve-data", str(tmp_path / "d"), "--port", "0") as url:
        place = url.partition("//")[2]
        port = place.rpartition(":")[2]
        for name in (place, f"localhost:{port}"):
            with rpc.connect(url, host=name, origin=f"http://{name}") as client:
                assert client.rpc("dataset", "list", {}, PATIENCE) == {"datasets": []}
        name = f"evil.example:{port}"
        with pytest.raises(HandshakeError, match="403"):
            wsmux.connect(url, timeout=PATIENCE, host=name, origin=f"http://{name}")


def test_an_empty_token_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("\n \n")
    (tmp_path / "tokens").chmod(0o600)
    words = refused(str(tmp_path / "d"), "--token-file", str(tmp_path / "tokens"))
    assert "holds no token" in words
    assert "visible ASCII" in refused(str(tmp_path / "d"), WSMUX_TOKEN="a b")


def test_a_token_file_that_others_have_access_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("secret")
    (tmp_path / "tokens").chmod(0o644)
    words = refused(str(tmp_path / "d"), "--token-file", str(tmp_path / "tokens"))
    assert f"chmod 600 {tmp_path / 'tokens'}" in words


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_directory_of_other_things_is_left_alone(tmp_path: Path, processes: str) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    words = refused(str(tmp_path), "--processes", processes, status=1)
    assert words.count("\n") == 1
    assert "holds other things" in words
    assert os.listdir(tmp_path) == ["thesis.txt"]


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_port_in_use_is_refused(tmp_path: Path, processes: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = refused(str(tmp_path), "--port", port, "--processes", processes, status=1)
    assert "in use" in words


def test_url_and_token_and_end(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("one\ntwo\n")
    (tmp_path / "tokens").chmod(0o600)
    options = ["--port", "0", "--json", "--token-file", str(tmp_path / "tokens"), "--ttl", "1h"]
    options += ["--retention", "rows=5,hard-age=1d", "--linger", "1s"]
    with running("serve-data", str(tmp_path / "d"), *options) as line:
        told = json.loads(line)
        assert told["url"].endswith(str(told["port"]))
        for token in ("one", "two"):
            headers = {"Authorization": f"Bearer {token}"}
            with rpc.connect(told["url"], headers=headers) as client:
                assert client.rpc("dataset", "list", {}, PATIENCE) == {"datasets": []}
        with pytest.raises(HandshakeError, match="token"):
            wsmux.connect(told["url"], timeout=PATIENCE)
    assert (tmp_path / "d" / "datasets").is_dir()


@pytest.fixture
def several(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve by three processes; give the URL and the one that started them."""
    program = command("serve-data", str(tmp_path), "--port", "0", "--processes", "3")
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 143
        assert "Traceback" not in errors, errors


def children(process: subprocess.Popen[str]) -> list[int]:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


@pytest.mark.hang_bound(180)
def test_processes_share_a_directory(several: tuple[str, subprocess.Popen[str]]) -> None:
    """Commits of all of them are in one order, and what one does is pushed by the others."""
    url, process = several
    assert len(children(process)) == 3
    schema, count = schema_of(SCHEMA), 8
    answers: list[Any] = []

    def work(me: int) -> None:
        with rpc.connect(url) as calls, wsmux.connect(url, timeout=PATIENCE) as streams:
            for turn in range(3):
                start = 100 * me + 10 * turn
                answers.append(write_all(calls, streams, "d", [[rows(start, 10)]]))
            begun = call(calls, "topic.begin", topic="t", query=f"q{me}", batch=0, schema=schema)
            receipt = put(streams, begun["txn"], 0, rows(me, 1))
            call(calls, "topic.commit", txn=begun["txn"], receipts=[receipt])

    with rpc.connect(url) as calls:
        call(calls, "topic.create", topic="t", schema=schema)
        with calls.subscribe("topic", "heads", {"topic": "t"}, PATIENCE) as heads:
            threads = [threading.Thread(target=work, args=(me,)) for me in range(count)]
            for thread in threads:
                thread.start()
            latest = 0
            while latest < count:
                latest = heads.read()["latest"][0]
            for thread in threads:
                thread.join(PATIENCE)
        assert sorted(answer["version"] for answer in answers) == list(range(3 * count))
        (one,) = call(calls, "dataset.describe", dataset="d", partitions=1)["ranges"]
        with wsmux.connect(url, timeout=PATIENCE) as streams:
            found = ids(get(streams, token=one["token"])[1])
            assert len(found) == len(set(found)) == 30 * count
            streamed = ids(get(streams, topic="t", partition=0, start=0, end=count)[1])
            assert sorted(streamed) == list(range(count))


@pytest.mark.hang_bound(180)
def test_a_process_that_is_killed_is_replaced(several: tuple[str, subprocess.Popen[str]]) -> None:
    url, process = several
    before = children(process)
    os.kill(before[0], signal.SIGKILL)
    assert process.stderr is not None
    assert "serving" in process.stderr.readline()
    assert process.stderr.readline() == f"process {before[0]} ended with -9\n"
    for _ in range(20):  # whichever process answers
        with rpc.connect(url) as client:
            assert client.rpc("dataset", "list", {}, PATIENCE) == {"datasets": []}
    assert len(set(children(process)) - {before[0]}) == 3


@pytest.mark.hang_bound(180)
def test_processes_end_when_the_first_one_is_killed(tmp_path: Path) -> None:
    program = command("serve-data", str(tmp_path), "--port", "0", "--processes", "2")
    process = subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ws://")
    pids = children(process)
    process.kill()
    process.wait(PATIENCE)
    process.stdout.close()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), PATIENCE)


@pytest.mark.parametrize("address", ["s3://bucket", "abfss://c@a.dfs.core.windows.net/x"])
def test_an_address_that_is_none_of_s3_is_refused(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (address, Path(address)):
        with pytest.raises(ValueError, match="expected s3://BUCKET/PREFIX, as text, not"):
            serve_data(given)
    assert "expected s3://BUCKET/PREFIX" in refused(address)
    assert not [*tmp_path.iterdir()]
