"""Close what tests have connected, and start one Spark session for all that need one."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..helpers.programs import VARIABLE, needs, required
from ..helpers.spark.inside import close_databases, links_held
from ..helpers.spark.sessions import SLOTS, environment, new_session


def demand(report: pytest.CollectReport | pytest.TestReport) -> None:
    """Make a failure of a test that is skipped where everything has to run."""
    if report.skipped and required("spark"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{VARIABLE} has spark, but {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    demand(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    demand(report)
    return report


@pytest.fixture(autouse=True)
def links() -> Iterator[dict[Any, Any]]:
    """Return what this process holds of recipes, and close it behind the test."""
    held = links_held()
    yield held
    for link in list(held.values()):
        link.close()
    held.clear()


@pytest.fixture(autouse=True)
def databases() -> Iterator[None]:
    """Close the databases of topics behind the test."""
    yield
    close_databases()


@pytest.fixture(scope="session")
def engines(pytestconfig: pytest.Config) -> Iterator[None]:
    """Start what reads tables by other engines."""
    from ..helpers.spark.engines import running

    with running() as duckdb_by:
        capture = pytestconfig.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            writer = pytestconfig.get_terminal_writer()
            writer.line(f"\nDuckDB reads Delta tables by {duckdb_by}")
        yield


@pytest.fixture(scope="session")
def objects() -> Iterator[Any]:
    """Return an ``ObjectStore``, which speaks S3; import its module, for what it has started."""
    from ..helpers.spark.object_store import ObjectStore

    with ObjectStore() as store:
        yield store


@pytest.fixture
def compared(engines: None, tmp_path: Path) -> Iterator[None]:
    """Have other engines read each table that a test leaves, as it is read here."""
    from ..helpers.spark.engines import assert_same

    yield
    assert_same(tmp_path)


@pytest.fixture(scope="session")
def java() -> str:
    """Return where Java is."""
    return environment()["JAVA_HOME"]


@pytest.fixture(scope="session")
def spark(java: str) -> Iterator[Any]:
    """Return the session: ``SLOTS`` tasks at once, and three attempts at each."""
    session = new_session(java, f"local[{SLOTS},3]")
    session.sparkContext.parallelize([1], 1).count()  # starts what else there is
    yield session
    session.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 2 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    command = [needs("mount"), "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)]
    if (ran := subprocess.run(command, capture_output=True, text=True)).returncode:
        pytest.skip(f"a file system cannot be mounted here: {ran.stderr.strip()}")
    yield directory
    subprocess.run(["umount", directory], check=True)
