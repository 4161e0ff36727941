"""Workers share the compiling of the tests."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from .helpers import bytecode

COUNT = 3


def session_of(folder: Path, worker: int | None) -> Any:
    """Return the session of a worker, or of a run without workers."""
    config = SimpleNamespace(
        args=["tests"],
        rootpath=folder,
        invocation_params=SimpleNamespace(dir=folder),
    )
    if worker is not None:
        config.workerinput = {"workerid": f"gw{worker}", "workercount": COUNT}
    return SimpleNamespace(config=config)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "helpers/ports.py",
        "test_a.py",
        "mux/test_b.py",
        "mux/test_c.py",
        "rpc/test_d.py",
    ):
        path = tmp_path / "tests" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    return tmp_path


def test_each_worker_imports_a_share_first_and_all_of_them_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: list[str] = []

    def import_module(name: str) -> None:
        imported.append(name)
        raise (pytest.skip.Exception if name.endswith("b") else ImportError)(name)  # as it may

    monkeypatch.setattr(importlib, "import_module", import_module)
    shares = []
    for worker in range(COUNT):
        bytecode.pytest_collection(session_of(folder, worker))
        shares.append(len(imported) - sum(shares))
    assert sorted(imported) == [
        *("tests.mux.test_b", "tests.mux.test_c", "tests.rpc.test_d", "tests.test_a")
    ]
    assert shares == [2, 1, 1]


def test_a_run_without_workers_imports_nothing_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib, "import_module", pytest.fail)
    bytecode.pytest_collection(session_of(folder, None))


def test_a_single_file_that_is_asked_for_is_no_folder(folder: Path) -> None:
    config = session_of(folder, 0).config
    config.args = ["tests/test_a.py::test_it", "tests/test_a.py"]
    assert list(bytecode.modules(config)) == []
