"""What is built from the checkout: its contents, and its types, where nothing else is."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ..helpers.programs import package

ROOT = Path(__file__).parent.parent.parent
EXTRAS = "adapters,bus,cli,fast,flask,metrics,rpc,tracing"
PUBLIC = (
    "wsmux",
    *(f"wsmux.{name}" for name in ("adapters", "bus", "flask", "rpc", "testing", "tunnel", "wsgi")),
)
UNKNOWN = 14  # classes made of those of pyspark, which is not installed
COMPLETE = 0.86  # of all modules; what is left are attributes without a type of inner classes
STUBS = ("pytest", "types-protobuf", "types-requests")  # what mypy takes the library's own types by

# Print where each name that users may rely on is defined.
NAMES = """
import importlib, sys
for package in map(importlib.import_module, sys.argv[1:]):
    for each in (getattr(package, name) for name in package.__all__):
        if hasattr(each, "__qualname__"):
            print(f"{each.__module__}.{each.__qualname__}")
"""

pytestmark = [pytest.mark.long, pytest.mark.hang_bound(600)]


class Built(NamedTuple):
    """The two files, and a Python that has the wheel and its extras, but no checkout."""

    sdist: Path
    wheel: Path
    python: Path
    away: Path


def run(*command: object, away: Path) -> str:
    """Run a program far from the checkout, and return what it said."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(each) for each in command],
        cwd=away,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the sdist from the checkout and the wheel from the sdist, and install the wheel."""
    for name in ("build", "twine", "mypy", "basedpyright"):
        package(name, "package")
    place = tmp_path_factory.mktemp("distributions")
    away = place / "away"
    away.mkdir()
    checkout = place / "checkout"  # what a build leaves behind stays there
    run("git", "clone", "--quiet", ROOT, checkout, away=away)
    run(sys.executable, "-m", "build", "--outdir", place, checkout, away=away)
    (sdist,), (wheel,) = place.glob("*.tar.gz"), place.glob("*.whl")
    run(sys.executable, "-m", "venv", place / "venv", away=away)
    python = place / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[{EXTRAS}]", *STUBS, away=away)
    return Built(sdist, wheel, python, away)


def completeness(*command: object, away: Path, path: str) -> dict[str, Any]:
    """Return what a checker says of the types of a package; its status is 1 below 100 %."""
    done = subprocess.run(
        [str(each) for each in command],
        cwd=away,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    told: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    return told


def metadata(built: Built) -> Message:
    with zipfile.ZipFile(built.wheel) as wheel:
        (name,) = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(wheel.read(name))


def tracked(*folders: str) -> set[str]:
    """Return the files of the repository in some of its folders."""
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(listed.stdout.splitlines())


def test_the_wheel_is_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
    (information,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    contents = {name for name in names if not name.startswith(information)}
    assert contents == tracked("wsmux", "pyspark_wsmux.py")
    assert {"wsmux/py.typed", "wsmux/flask/wsmux.js", "wsmux/flask/live.html"} < contents
    assert f"{information}/licenses/LICENSE" in names


def test_the_metadata_names_what_is_tested(built: Built) -> None:
    told = metadata(built)
    versions = {
        found[1]
        for each in told.get_all("Classifier", [])
        if (found := re.fullmatch(r"Programming Language :: Python :: (\d\.\d+)", each))
    }
    tested = re.search(r"^for version in ([\d. ]+);", (ROOT / ".ci" / "run").read_text(), re.M)
    assert tested is not None
    assert versions == {told["Requires-Python"].removeprefix(">="), *tested[1].split()}
    assert "Operating System :: POSIX :: Linux" in told.get_all("Classifier", [])
    assert told["License-Expression"] == "MIT"
    run(sys.executable, "-m", "twine", "check", "--strict", built.sdist, built.wheel, away=ROOT)


def test_the_sdist_has_all_that_its_tests_and_its_documentation_need(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert tracked() - names == {".gitignore"}


def test_a_program_runs_on_the_installed_wheel_and_its_types_are_known(built: Built) -> None:
    consumer = built.away / "consumer.py"
    consumer.write_text(Path(__file__).with_name("consumer.py").read_text())
    where = run(built.python, consumer, away=built.away)
    assert Path(where.splitlines()[-1]).is_relative_to(built.python.parent.parent)
    run(
        *(sys.executable, "-m", "mypy", "--strict", "--python-executable", built.python, consumer),
        away=built.away,
    )
    checker = (sys.executable, "-m", "basedpyright", "--pythonpath", built.python)
    run(*checker, "--level", "error", consumer, away=built.away)


def test_the_installed_package_is_strict(built: Built) -> None:
    """With the project's own list of libraries that have no types."""
    settings = ("--config-file", ROOT / "pyproject.toml", "--python-executable", built.python)
    run(sys.executable, "-m", "mypy", *settings, "-p", "wsmux", away=built.away)


def test_every_public_name_has_a_type_that_is_written_down(built: Built) -> None:
    """A type that is only inferred may be another one to another checker."""
    public = set(run(built.python, "-c", NAMES, *PUBLIC, away=built.away).split())
    assert {"wsmux.client.connect", "wsmux.mux.stream.Stream"} < public
    command = (sys.executable, "-m", "basedpyright", "--verifytypes", "wsmux")
    path = f"{built.python.parent}{os.pathsep}{os.environ['PATH']}"  # no option names this Python
    told = completeness(*command, "--ignoreexternal", "--outputjson", away=built.away, path=path)
    assert told["completenessScore"] >= COMPLETE
    counts = told["exportedSymbolCounts"]
    assert counts["withUnknownType"] <= UNKNOWN
    unclear = [
        f"{symbol['name']}: {each['message']}"
        for symbol in told["symbols"]
        if symbol["name"] in public or symbol["name"].rpartition(".")[0] in public
        for each in symbol["diagnostics"]
        # What is partially unknown is so by a class inside, which is no name for users; and a
        # docstring may stand in the base class.
        if "type" in each["message"].lower() and "partially" not in each["message"]
    ]
    assert unclear == []
