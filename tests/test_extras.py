"""The extras of the distribution, and that ``[all]`` is what users may want of them."""

from __future__ import annotations

import re

from .helpers.checkout import ROOT, extras

# What only tests, measures, or demonstrates with Spark, and the union itself.
NOT_FOR_USERS = {
    *("all", "bench", "demo-spark", "docs", "fuzz", "mutation", "package", "spark-test", "test"),
}


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
