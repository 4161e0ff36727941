"""The commands and programs of the tutorial about names do what the page says."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from ..helpers.doc_pages import ROOT, answers, blocks
from ..helpers.ports import free_port
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

pytestmark = pytest.mark.tools

PAGE = (ROOT / "docs" / "tutorial-names.md").read_text()


def money(orders: int) -> float:
    """Return the total of so many orders: 90 % of 0 + 20, 1 + 20 and so on."""
    return sum((number + 20) * 90 / 100 for number in range(orders))


MONEY = money(300)


class Tutorial:
    """The files and processes of the tutorial, on free ports."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self.ports = {port: free_port() for port in (8080, 5001, 5002, 5003)}
        for name, text in blocks(PAGE, "python").items():
            (folder / name).write_text(self.moved(text))
        self.commands = {
            title: self.moved(text).splitlines() for title, text in blocks(PAGE, "sh").items()
        }
        self.expected = blocks(PAGE, "text")
        self.workers: list[subprocess.Popen[str]] = []

    def moved(self, text: str) -> str:
        """Put free ports in place of those of the page."""
        for port, free in self.ports.items():
            text = text.replace(str(port), str(free))
        return text

    def start(self, line: str) -> subprocess.Popen[str]:
        """Run a command of the page; it is killed at the end."""
        program, *rest = shlex.split(line)
        given = [sys.executable, *rest] if program == "python" else [sys.executable, "-m", program]
        process = subprocess.Popen(
            given if program == "python" else [*given, *rest],
            cwd=self.folder,
            env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process

    def run(self, line: str) -> str:
        """Run a command to its end, and return what it prints."""
        process = self.start(line)
        said, _ = process.communicate(timeout=WAIT)
        assert process.returncode == 0, line
        return said

    def serve(self) -> None:
        """Make the twins, and start the relay and the workers."""
        assert [self.run(line) for line in self.commands["twins"]] == ["1\n", "2\n"]
        (relay,) = self.commands["relay"]
        self.start(relay)
        wait_for(lambda: answers(self.ports[8080]), WAIT)
        self.workers = [self.start(line) for line in self.commands["workers"]]
        for port in (5001, 5002, 5003):
            wait_for(lambda port=port: answers(self.ports[port]), WAIT)  # type: ignore[misc]

    def who(self) -> str:
        """Ask what the page asks with curl."""
        (line,) = self.commands["who"]
        with urlopen(line.split()[1], timeout=WAIT) as answer:
            return str(answer.read().decode())


@pytest.fixture
def tutorial(tmp_path: Path) -> Iterator[Tutorial]:
    with ExitStack() as stack:
        made = Tutorial(tmp_path, stack)
        made.serve()
        wait_for(lambda: three_have_joined(made), WAIT)
        yield made


def three_have_joined(tutorial: Tutorial) -> bool:
    try:
        return '"workers":3' in tutorial.who()
    except HTTPError as error:  # nobody has joined yet
        error.close()
        return False


@pytest.mark.hang_bound(300.0)
def test_the_workers_take_turns(tutorial: Tutorial) -> None:
    assert tutorial.who() == tutorial.expected["who"]
    (line,) = tutorial.commands["orders"]
    assert tutorial.run(line) == tutorial.expected["orders"]
    assert f"{MONEY:.1f} in all" in tutorial.expected["orders"]
    assert f"{money(3000)} in all" in PAGE  # what it says of more orders


@pytest.mark.hang_bound(300.0)
def test_a_worker_may_be_killed_meanwhile(tutorial: Tutorial) -> None:
    (line,) = tutorial.commands["orders"]
    script = tutorial.start(line)
    wait_for(lambda: shop_has_joined(tutorial), WAIT)
    tutorial.workers[1].kill()
    said, _ = script.communicate(timeout=WAIT)
    assert script.returncode == 0
    assert f"{MONEY:.1f} in all" in said
    wait_for(lambda: '"workers":2' in tutorial.who(), WAIT)


def shop_has_joined(tutorial: Tutorial) -> bool:
    """Return whether the script is under way: the relay counts it beside three workers."""
    with urlopen(f"http://127.0.0.1:{tutorial.ports[8080]}/metrics", timeout=WAIT) as answer:
        return "relay_name_workers 4.0" in answer.read().decode()
