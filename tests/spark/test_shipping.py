"""A zip with wsmux is enough for a Python that has nothing installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wsmux.rpc import serve
from wsmux.spark import shipping
from wsmux.spark.shipping import build, ship

from ..helpers.spark.servers import WAIT, Seen, offered

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from wsmux.spark import connection, rpc
import msgpack, wsmux
assert wsmux.__file__.startswith(sys.argv[1])
assert msgpack.Packer.__module__ == "msgpack.fallback"
call = rpc(connection(sys.argv[2]), "test.many").rows(batch_rows=4)
print(list(call([b"a", "b", 2**60, 1.5])))
"""


def test_a_bare_python_calls_from_the_zip(tmp_path: Path) -> None:
    with serve([offered(Seen())]) as server:
        done = subprocess.run(
            [
                os.path.realpath(sys.executable),
                "-S",
                "-E",
                "-c",
                PROGRAM,
                build(tmp_path),
                server.url,
            ],
            capture_output=True,
            timeout=WAIT,
            cwd=tmp_path,
        )
    assert done.stderr.decode() == ""
    assert done.stdout.decode() == f"[b'aa', 'bb', {2**61}, 3.0]\n"


def test_equal_contents_make_equal_files(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = build(tmp_path / "one"), build(tmp_path / "two")
    assert Path(one).read_bytes() == Path(two).read_bytes()
    assert Path(one).stat().st_size < 1_200_000


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shipping, "PACKAGES", ("wsmux", "no_such_package"))
    with pytest.raises(ImportError, match="no_such_package is not installed, and workers need it"):
        build(tmp_path)


def test_each_kind_of_session_is_sent_the_file() -> None:
    sent: list[tuple[str, bool]] = []

    class Context:
        def addPyFile(self, path: str) -> None:
            sent.append((path, False))

    class Classic:
        _sc = Context()

    class Connect:
        def addArtifacts(self, path: str, pyfile: bool) -> None:
            sent.append((path, pyfile))

    paths = [ship(Classic()), ship(Connect())]
    assert sent == [(paths[0], False), (paths[1], True)]
