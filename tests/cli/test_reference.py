"""The reference builds from the docstrings, as the README tells."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tools, pytest.mark.hang_bound(240.0)]

README = Path(__file__).parent.parent.parent / "README.md"


def test_pdoc_builds_the_reference(tmp_path: Path) -> None:
    (command,) = re.findall(r"^(pdoc .*?) -o \S+", README.read_text(), re.MULTILINE)
    words = shlex.split(command)
    ran = subprocess.run(
        [sys.executable, "-m", *words, "-o", tmp_path], capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stderr
    names = [word for word in words if word.startswith("wsmux")]
    assert len(names) > 5
    for name in names:
        page = tmp_path.joinpath(*name.split(".")).with_suffix(".html").read_text()
        assert 'class="docstring"' in page
