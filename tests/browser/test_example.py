"""Open the example's page, as its user would."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ..helpers.browser.chromium import PATIENCE, opened
from ..helpers.checkout import ROOT, expected_output

pytestmark = [pytest.mark.tools, pytest.mark.hang_bound(180.0)]


def test_the_example_says_what_its_comment_does(devtools: int) -> None:
    path = ROOT / "examples" / "23_browser.py"
    example = subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert example.stderr is not None
    url = next(line for line in example.stderr if line.startswith("open http")).split()[1]
    with opened(devtools, url) as page:
        said, _ = example.communicate(timeout=PATIENCE)
        items = page.run(
            "return Array.from(document.querySelectorAll('li'), (item) => item.textContent)"
        )
    assert items == ["tick 1", "tick 2", "tick 3"]
    assert (example.returncode, said) == (0, expected_output(path.read_text()))
