"""A private folder lets nobody else in, and only what is there is made safe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wsmux.runtime.files import private_folder, sync_path, write_synced


def test_a_private_folder_is_made_once(tmp_path: Path) -> None:
    for _ in range(2):
        private_folder(tmp_path / "own")
        assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.mkdir(mode=0o755),
        lambda path: path.symlink_to(path.parent),
    ],
    ids=["open to others", "a link"],
)
def test_what_others_may_enter_is_refused(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "shared")
    with pytest.raises(PermissionError, match="shared must be a directory that only this user"):
        private_folder(tmp_path / "shared")


def test_a_file_and_its_folder_are_made_safe(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("data")
    sync_path(tmp_path / "file")
    sync_path(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_path(tmp_path / "missing")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path, new = tmp_path / "file", tmp_path / "new"
    for data in (b"the first content", b"another"):
        write_synced(path, new, data)
        assert path.read_bytes() == data
        assert path.stat().st_mode & 0o777 == 0o600
        assert not new.exists()
