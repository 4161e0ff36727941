"""The programs of the tutorial and of the first page do what the pages say."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import wsmux

from ..helpers.browser.chromium import browser, opened
from ..helpers.doc_pages import ROOT, answers, blocks
from ..helpers.ports import free_port
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for
from ..helpers.werkzeug_server import serving

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()


class Tutorial:
    """The files of the tutorial in a folder, and its application on a free port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        for name, text in (blocks(TUTORIAL, "python") | blocks(TUTORIAL, "html")).items():
            (folder / name).write_text(text.replace(":5000/", f":{self.port}/"))

    @contextmanager
    def served(self) -> Iterator[None]:
        command = ["-m", "flask", "--app", "app", "run", "--with-threads", "--port", str(self.port)]
        with self.started(*command) as server:
            wait_for(lambda: server.poll() is not None or answers(self.port), timeout=WAIT)
            assert server.poll() is None
            yield

    @contextmanager
    def started(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def upload(self) -> str:
        """Upload what the page does, and return what the program prints."""
        (command,) = re.findall(r"^python (upload\.py) \*\.py$", TUTORIAL, re.MULTILINE)
        names = sorted(path.name for path in self.folder.glob("*.py"))
        with self.started(command, *names) as process:
            said, _ = process.communicate(timeout=WAIT)
        assert process.returncode == 0
        return said


@pytest.fixture
def tutorial(tmp_path: Path) -> Iterator[Tutorial]:
    made = Tutorial(tmp_path)
    with made.served():
        yield made


@pytest.mark.hang_bound(180.0)
def test_uploads_arrive_and_the_feed_tells_of_them(tutorial: Tutorial) -> None:
    (expected,) = blocks(TUTORIAL, "text").values()
    lines: list[str] = []
    with tutorial.started("-u", "watch.py") as watcher:
        reader = threading.Thread(target=read_lines, args=(watcher, lines))
        reader.start()
        # The watcher may connect after some uploads, of which it is not told.
        while len(lines) < 3:
            assert tutorial.upload() == expected
        watcher.kill()
        reader.join(WAIT)
    assert {line.partition(":")[0] for line in lines} <= {"app.py", "upload.py", "watch.py"}
    for name in ("app.py", "upload.py", "watch.py"):
        here, there = tutorial.folder / name, tutorial.folder / "received" / name
        assert there.read_bytes() == here.read_bytes()


def read_lines(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)  # noqa: PERF402 -- another thread looks at them meanwhile


@pytest.mark.tools
@pytest.mark.hang_bound(180.0)
def test_the_page_shows_the_feed(
    tutorial: Tutorial, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shown = "return Array.from(document.querySelectorAll('li'), (item) => item.textContent)"
    with (
        browser(tmp_path_factory.mktemp("chromium")) as port,
        opened(port, f"http://127.0.0.1:{tutorial.port}/") as page,
    ):
        rows: Callable[[], list[str]] = lambda: page.run(shown)  # noqa: E731
        while not rows():
            tutorial.upload()
        wait_for(lambda: len(rows()) >= 3, timeout=WAIT)
        assert {row.partition(":")[0] for row in rows()} == {"app.py", "upload.py", "watch.py"}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_program_of_the_first_page_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = blocks((ROOT / page).read_text(), "python")[""]
    exec(compile(program, page, "exec"), {})
    assert capsys.readouterr().out == "b'hello'\n"


def test_the_application_of_the_readme_echoes() -> None:
    names: dict[str, Any] = {"__name__": "app"}
    exec(blocks((ROOT / "README.md").read_text(), "python")["app.py"], names)
    with (
        serving(names["app"]) as port,
        wsmux.connect(f"ws://127.0.0.1:{port}/echo", timeout=WAIT) as connection,
        connection.open_stream(WAIT) as stream,
    ):
        stream.timeout = WAIT
        stream.write(b"hello")
        stream.close_write()
        assert stream.readall() == b"hello"
