"""Each command of wsmux that a page shows is one that its parser takes."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest

from wsmux.cli.main import parser

from ..helpers.checkout import ROOT

PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md")
    for path in sorted(ROOT.glob(pattern))
]

# Behind one of these begins what belongs to the shell.
SHELL = {"|", "<", ">", ">>", "&", "&&", ";", "2>"}


def commands(text: str) -> list[list[str]]:
    """Return the words behind "wsmux" of each command in the blocks of a page."""
    found = []
    blocks = re.findall(r"^```.*\n((?:.*\n)*?)```$|^ {4}(.*)$", text, re.MULTILINE)
    shown = "\n".join(fenced or indented for fenced, indented in blocks)
    for line in shown.replace("\\\n", " ").splitlines():
        if line.lstrip("$ ").startswith(("wsmux ", "WSMUX_", "python -m wsmux ")):
            lexer = shlex.shlex(line.lstrip("$ "), posix=True, punctuation_chars="|<>&;")
            lexer.whitespace_split = True
            words = list(takewhile(lambda word: word not in SHELL, lexer))
            if "wsmux" in words:
                found.append(words[words.index("wsmux") + 1 :])
    return found


@pytest.mark.parametrize(
    "page",
    [path for path in PAGES if commands(path.read_text())],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_commands_of_a_page_are_those_of_the_parser(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = []
    for words in commands(page.read_text()):
        try:
            parser(words[:1]).parse_args(words)
        except SystemExit as error:
            if error.code:
                refused.append((words, capsys.readouterr().err.splitlines()[-1]))
    assert refused == []
