"""The reference builds from the docstrings, as CONTRIBUTING tells, with what it says to install."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ..helpers.checkout import requirements

pytestmark = [pytest.mark.tools, pytest.mark.hang_bound(240.0)]

PAGE = Path(__file__).parent.parent.parent / "CONTRIBUTING.md"

# Runs pdoc where the modules named first look as if not installed.
WITHOUT = """
import runpy, sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))
runpy.run_module("pdoc", run_name="__main__", alter_sys=True)
"""


def brought(*asked_for: str) -> set[str]:
    """Return the distributions that requirements bring, of those that are installed."""
    found: set[str] = set()
    asked = [(Requirement(line), "") for line in asked_for]
    while asked:
        wanted, extra = asked.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(wanted.name)
        if name in found and not wanted.extras:
            continue
        found.add(name)
        try:
            lines = requires(name) or ()
        except PackageNotFoundError:
            continue  # such as pyspark, which nothing imports at once
        asked += [(Requirement(line), each) for line in lines for each in {"", *wanted.extras}]
    return found


def not_brought_by_all() -> list[str]:
    """Return the modules that are installed here, and not by what that page says."""
    core = ("websocket-client", "simple-websocket")
    kept = brought("pdoc", *core, *requirements("all")) | {"wsmux-streams"}
    return [
        module
        for module, homes in packages_distributions().items()
        if module.isidentifier() and not kept & {canonicalize_name(home) for home in homes}
    ]


def test_pdoc_builds_the_reference_with_what_the_page_says_to_install(tmp_path: Path) -> None:
    text = PAGE.read_text()
    assert "it needs `pip install '.[all]' pdoc`" in text
    (command,) = re.findall(r"^pdoc (.*?) -o \S+", text, re.MULTILINE)
    words = shlex.split(command)
    hidden = not_brought_by_all()
    assert {"hypothesis", "ruff", "trustme"} <= set(hidden)
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, ",".join(hidden), *words, "-o", tmp_path],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    names = [word for word in words if word.startswith("wsmux")]
    assert len(names) > 5
    for name in names:
        page = tmp_path.joinpath(*name.split(".")).with_suffix(".html").read_text()
        assert 'class="docstring"' in page
