"""The same job runs unchanged on executors of their own, and over Spark Connect.

Spark Connect has no RDDs and no ``sparkContext``.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from wsmux.spark import serve_data

from ..helpers.spark.servers import Seen, echo, offered
from ..helpers.spark.sessions import SETTINGS, WAIT, environment, printed

pytestmark = [pytest.mark.long, pytest.mark.hang_bound(600)]


def spark_home(directory: Path) -> str:
    """Return a home of Spark's in which it may leave the files of its executors."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    for each in Path(spec.origin).parent.iterdir():
        if each.name != "work":
            (directory / each.name).symlink_to(each)
    return str(directory)


@pytest.mark.parametrize(
    ("master", "modules"),
    [
        pytest.param("local-cluster[2,1,1024]", [], id="local-cluster"),
        pytest.param("connect:local[2]", ["grpc", "grpc_status"], id="connect"),
    ],
)
def test_the_same_job(master: str, modules: list[str], tmp_path: Path) -> None:
    needed = environment(*modules) | {"SPARK_HOME": spark_home(tmp_path)}
    settings = SETTINGS | {"spark.task.maxFailures": "1"}
    services = [offered(Seen())]
    with serve_data(services=services, streams={"echo": echo}) as server:
        arguments = [master, server.url, json.dumps(settings)]
        found = printed("tests.helpers.spark.job", *arguments, environment=needed, timeout=WAIT)
    assert json.loads(found) == {
        "shipped": True,
        "called": 1000,
        "streamed": 1000,
        "kept": [1000, 1000],
        "error": ["INVALID_REQUEST", "test.none"],
    }
