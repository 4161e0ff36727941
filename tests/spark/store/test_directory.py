"""Which directory is a store, and safe ways into it; nothing outside is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.store import directory as directory_module
from wsmux.spark.store.directory import open_directory, read_object, temporary_directory

BAD = {
    "garbage": b"\x00\xff",
    "half": b'{"a":',
    "list": b"[]",
    "empty": b"",
    "deep": b"[" * 30_000,
}


def test_an_empty_directory_becomes_a_store(tmp_path: Path) -> None:
    open_directory(tmp_path / "a" / "b")
    open_directory(tmp_path / "a" / "b")
    names = {path.name for path in (tmp_path / "a" / "b").iterdir()}
    assert names == {"datasets", "topics", "wsmux-store.json"}


def test_the_names_that_lead_to_a_new_store_are_safe_from_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safe: dict[Path, set[str]] = {}
    monkeypatch.setattr(
        directory_module, "sync_path", lambda path: safe.update({path: set(os.listdir(path))})
    )
    home = tmp_path / "a" / "b"
    for _ in range(2):
        open_directory(home)
        assert safe[home] == {"datasets", "topics", "wsmux-store.json"}
        assert safe[tmp_path / "a"] == {"b"}
        # By another process, which was killed before it made them safe.
        safe[home] = safe[tmp_path / "a"] = set()
    assert safe[tmp_path] == {"a"}


def test_a_directory_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(RiverError, match="is no store"):
        open_directory(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_two_processes_may_make_a_store_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(path: Path, shown: str) -> object:
        """Return what is there, and have the other process come first all the same."""
        found = read_object(path, shown)
        monkeypatch.undo()
        open_directory(tmp_path)
        (tmp_path / "topics.db").touch()
        return found

    monkeypatch.setattr(directory_module, "read_object", late)
    open_directory(tmp_path)
    assert (tmp_path / "topics.db").exists()


def test_a_store_of_another_layout_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "wsmux-store.json").write_text('{"layout": 99}')
    with pytest.raises(RiverError, match="layout that is not known"):
        open_directory(tmp_path)


@pytest.mark.parametrize("name", ["datasets", "topics"])
def test_what_is_no_directory_is_named(tmp_path: Path, name: str) -> None:
    open_directory(tmp_path / "store")
    (tmp_path / "store" / name).rmdir()
    (tmp_path / "store" / name).symlink_to(tmp_path)
    with pytest.raises(RiverError, match=f"{name} is a symbolic link, not a directory"):
        open_directory(tmp_path / "store")


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_a_damaged_object_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(RiverError, match=r"x\.json is damaged") as caught:
        read_object(tmp_path / "x.json", "x.json")
    assert caught.value.code == "CORRUPT"


def test_an_object_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert read_object(tmp_path / "x.json", "x.json") is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text('{"a": 1}')
    (tmp_path / "x.json").symlink_to(tmp_path / "outside")
    with pytest.raises(RiverError, match="cannot be read"):
        read_object(tmp_path / "x.json", "x.json")


def test_a_directory_or_a_pipe_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("directory", "pipe"):
        with pytest.raises(RiverError, match="is not a file"):
            read_object(tmp_path / name, name)


def test_a_temporary_directory_goes_with_its_owner() -> None:
    class Owner:
        pass

    owner = Owner()
    path = Path(temporary_directory(owner, "test"))
    assert path.is_dir()
    del owner
    assert not path.exists()
