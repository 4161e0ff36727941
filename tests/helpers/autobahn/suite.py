"""Install Autobahn|Testsuite for the one Python it runs on, run it, and read its report.

It is for Python 2.7 alone, which `venv` no longer makes environments for; an older virtualenv
does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..interop.installs import PIP_OPTIONS, Unavailable, cached, run

__all__ = ["CASES", "Verdicts", "install", "read_report", "running"]

HERE = Path(__file__).parent

# All but compression (12 and 13), which is never negotiated, and the empty groups 8 and 11.
CASES = [f"{group}.*" for group in (1, 2, 3, 4, 5, 6, 7, 9, 10)]

PROBE = "import sys; assert sys.version_info[:2] == (2, 7); print(sys.executable)"
PROBE_TIMEOUT = 30.0

# What a case may come to without being a failure.
STRICT, LENIENT = {"OK", "INFORMATIONAL"}, {"NON-STRICT"}


class Verdicts(NamedTuple):
    """Hold what a run of the suite found.

    Attributes:
        count: the cases that ran.
        failed: each case that failed, and what the suite says of it.
        non_strict: the cases that were passed, but later or otherwise than they might be.
        unclean: each case whose closing handshake was not as it must be, and how it was.
    """

    count: int
    failed: dict[str, str]
    non_strict: list[str]
    unclean: dict[str, str]


def install() -> Path:
    """Return the suite's program, which is installed once.

    Raises:
        Unavailable: there is no Python 2.7, or the installation failed.
    """
    python = _find_python()
    requirements = (HERE / "requirements.txt").read_bytes()
    builder = (HERE / "builder_requirements.txt").read_text().strip()

    def fill(directory: Path, deadline: float) -> None:
        (directory / "requirements.txt").write_bytes(requirements)
        run(deadline, directory, sys.executable, "-m", "venv", "builder")
        pip = ("builder/bin/python", "-I", "-m", "pip", "install", *PIP_OPTIONS)
        run(deadline, directory, *pip, builder)
        run(deadline, directory, "builder/bin/python", "-m", "virtualenv", "-q", "-p", python, ".")
        step = ("-m", "pip", "install", *PIP_OPTIONS, "-r", "requirements.txt")
        run(deadline, directory, "bin/python", *step)
        shutil.rmtree(directory / "builder")

    return cached(requirements + python.encode(), fill) / "bin" / "wstest"


def _find_python() -> str:
    paths = (shutil.which("python2.7", path=directory) for directory in os.get_exec_path())
    for path in paths:
        if path is None:
            continue
        try:
            done = subprocess.run(
                [path, "-c", PROBE],
                env=os.environ | {"PYENV_VERSION": "2.7"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PROBE_TIMEOUT,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            continue  # not one that can be used; there may be others
        return done.stdout.strip()
    raise Unavailable("no Python 2.7 is on the PATH")


@contextmanager
def running(program: Path, mode: str, spec: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """Run the suite in a mode; its report goes to the folder that `spec` names as `outdir`."""
    out = Path(spec["outdir"])
    (out / "spec.json").write_text(json.dumps(spec))
    # The script beside the interpreter names the folder that the installation was made in.
    start = "from autobahntestsuite.wstest import run; run()"
    command = [str(program.parent / "python"), "-c", start]
    options = ["--mode", mode, "--spec", "spec.json", "--webport", "0"]
    with (out / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *options], cwd=out, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_report(out: Path, agent: str) -> Verdicts:
    """Return what the suite's report says of one agent.

    Raises:
        AssertionError: it has written none, or it is about nobody of that name.
    """
    index = out / "index.json"
    assert index.exists(), f"the suite wrote no report; its log: {(out / 'log').read_text()}"
    cases: dict[str, dict[str, Any]] = json.loads(index.read_text())[agent]
    return Verdicts(
        count=len(cases),
        failed={
            case: _details(out / found["reportfile"])
            for case, found in cases.items()
            if found["behavior"] not in STRICT | LENIENT
        },
        non_strict=[case for case, found in cases.items() if found["behavior"] in LENIENT],
        unclean={
            case: f"{found['behaviorClose']}, code {found['remoteCloseCode']}"
            for case, found in cases.items()
            if found["behaviorClose"] not in STRICT
        },
    )


def _details(report: Path) -> str:
    found = json.loads(report.read_text())
    return f"{found['behavior']}; {found['result']}; close: {found['resultClose']}"
