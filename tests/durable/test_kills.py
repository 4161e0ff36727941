"""Nothing is lost, and nothing there twice, whoever is killed and when.

Each eight bytes of the file are their own offset, so a byte that is lost, or there twice, makes the
digest another one; the receiver would refuse it, and the upload fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..helpers.killed_uploads import KilledUploads

MIB = 1024 * 1024


@pytest.fixture
def uploads(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[KilledUploads]:
    made = KilledUploads(tmp_path, request.param, seed=17)
    yield made
    made.end()


@pytest.mark.parametrize("uploads", [16 * MIB], indirect=True)
def test_an_upload_survives_whoever_is_killed(uploads: KilledUploads) -> None:
    count = 0
    while uploads.kills < 5:
        uploads.upload(f"file-{count}", kills=3)
        count += 1


@pytest.mark.long
@pytest.mark.hang_bound(7200.0)
@pytest.mark.parametrize("uploads", [64 * MIB], indirect=True)
def test_uploads_survive_a_thousand_kills(uploads: KilledUploads) -> None:
    count = 0
    while uploads.kills < 1000:
        uploads.upload(f"file-{count}", kills=20)
        count += 1
