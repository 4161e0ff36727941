"""The extras of the distribution, and that ``[all]`` is what users may want of them."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

__all__ = ["extras", "requirements"]

ROOT = Path(__file__).parent.parent

# What only tests, measures, or demonstrates with Spark, and the union itself.
NOT_FOR_USERS = {
    *("all", "bench", "demo-spark", "docs", "fuzz", "mutation", "package", "spark-test", "test"),
}


def extras() -> dict[str, list[str]]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    section = parser["options.extras_require"]
    return {name: text.strip().splitlines() for name, text in section.items()}


def requirements(extra: str) -> list[str]:
    """Return what an extra requires, with what stands in those it refers to."""
    found = []
    for line in extras()[extra]:
        reference = re.fullmatch(r"wsmux-streams\[(.+)\]", line)
        named = [] if reference is None else reference[1].split(",")
        found += [each for name in named for each in requirements(name)] or [line]
    return found


def test_all_is_the_union_of_what_users_may_want() -> None:
    (reference,) = extras()["all"]
    named = re.fullmatch(r"wsmux-streams\[([a-z0-9,-]+)\]", reference)
    assert named is not None
    assert named[1].split(",") == sorted(set(extras()) - NOT_FOR_USERS)


def test_every_extra_that_a_document_names_exists() -> None:
    named = set()
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]:
        for group in re.findall(r"(?:'\.|wsmux-streams)\[([a-z0-9,-]+)\]", path.read_text()):
            named |= set(group.split(","))
    assert {"all", "bus", "spark"} <= named <= set(extras())
