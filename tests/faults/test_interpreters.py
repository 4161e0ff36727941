"""Fork, exit, collect and interrupt under the other CPythons of this machine.

``python_requires`` names the oldest that counts. What this one has installed is lent to them: the
core needs nothing that was compiled.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from ..helpers import process_scripts
from ..helpers.process_scripts import AT_EXIT

pytestmark = pytest.mark.long

OLDEST = (3, 11)

# Seconds that a script may take: what counts is that it ends well, and whole runs are slow.
LIMIT = 100.0

# From 3.13 on CPython prints what the finalizer of a file raises, so one that is dropped with bytes
# that were not flushed is reported.
STATES = [state for state in process_scripts.EXITS if not state.startswith("unflushed")]

# What the core imports.
LENT = ("h11", "simple_websocket", "websocket", "wsproto")

# Where Pythons are found beside this one.
PLACES = (Path.home() / ".pyenv/versions", Path("/opt/pyenv/versions"), Path("/usr"))


@cache
def others() -> dict[str, str]:
    """Return the other Pythons that count, newest release of each version, by their version."""
    found: dict[str, tuple[list[int], str]] = {}
    programs = {
        path.resolve()
        for place in PLACES
        for pattern in ("bin/python3.*", "*/bin/python3.*")
        for path in place.glob(pattern)
        if path.name.removeprefix("python3.").isdigit()
    }
    for program in programs:
        told = subprocess.run(
            [program, "-c", "import json, sys; print(json.dumps(sys.version_info[:3]))"],
            capture_output=True,
            check=False,
            timeout=120,
        )
        version = json.loads(told.stdout) if told.returncode == 0 else [0, 0, 0]
        name = ".".join(map(str, version[:2]))
        if tuple(version[:2]) >= OLDEST and version[:2] != list(sys.version_info[:2]):
            found[name] = max(found.get(name, ([], "")), (version, str(program)))
    return {name: program for name, (_, program) in sorted(found.items())}


@pytest.fixture(params=["3.11", "3.12", "3.13", "3.14"])
def python(request: pytest.FixtureRequest) -> str:
    if request.param not in others():
        pytest.skip(f"there is no other CPython {request.param} on this machine")
    return others()[request.param]


@pytest.fixture
def lent(tmp_path: Path) -> tuple[Path, ...]:
    """Return a directory with links to what the core needs, and to nothing else."""
    for name in LENT:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (tmp_path / name).symlink_to(Path(spec.origin).parent)
    return (tmp_path,)


@pytest.mark.parametrize("protocol", ["wsmux", "yamux", "bymux"])
@pytest.mark.parametrize("state", STATES)
def test_interpreter_exits_without_close(
    state: str, protocol: str, python: str, lent: tuple[Path, ...]
) -> None:
    process_scripts.run(
        "exit_with", state, protocol=protocol, python=python, path=lent, limit=LIMIT
    )


@pytest.mark.parametrize("kind", AT_EXIT)
def test_what_is_used_at_exit_works_or_fails_typed_and_prints_nothing(
    kind: str, python: str, lent: tuple[Path, ...]
) -> None:
    process_scripts.run("at_exit", kind, python=python, path=lent, limit=LIMIT)


@pytest.mark.parametrize("end", ["open", "closed"])
def test_a_subinterpreter_ends_though_its_streams_are_open(
    end: str, python: str, lent: tuple[Path, ...]
) -> None:
    probe = [python, "-c", "import _testcapi"]
    if subprocess.run(probe, capture_output=True, check=False, timeout=120).returncode:
        pytest.skip("that Python was built without _testcapi")
    process_scripts.run("subinterpreter", end, python=python, path=lent, limit=LIMIT)


def test_an_isolated_subinterpreter_has_no_threads_and_says_so(
    python: str, lent: tuple[Path, ...]
) -> None:
    process_scripts.run("isolated", python=python, path=lent, limit=LIMIT)


@pytest.mark.parametrize("unread", ["nothing", "unread"])
def test_every_call_in_a_forked_child_raises(
    unread: str, python: str, lent: tuple[Path, ...]
) -> None:
    process_scripts.run("fork", unread, python=python, path=lent, limit=LIMIT)


@pytest.mark.parametrize("how", ["os", "multiprocessing", "daemon"])
def test_forked_child_can_connect_anew(how: str, python: str, lent: tuple[Path, ...]) -> None:
    process_scripts.run("child_connects", how, python=python, path=lent, limit=LIMIT)


def test_forks_under_load_leave_the_parent_unharmed(python: str, lent: tuple[Path, ...]) -> None:
    process_scripts.run("fork_under_load", "50", python=python, path=lent, limit=LIMIT)


@pytest.mark.parametrize("kind", ["stream", "rb", "r"])
def test_collection_inside_the_mutex_resets_the_stream(
    kind: str, python: str, lent: tuple[Path, ...]
) -> None:
    process_scripts.run("collect_under_mutex", kind, python=python, path=lent, limit=LIMIT)


@pytest.mark.parametrize("call", ["read", "write", "accept_stream", "wait_closed"])
def test_interrupted_call_leaves_the_connection_usable(
    call: str, python: str, lent: tuple[Path, ...]
) -> None:
    process_scripts.run("interrupt", call, python=python, path=lent, limit=LIMIT)


@pytest.mark.parametrize("how", ["sigint", "alarm"])
def test_interrupts_at_random_moments_leave_nothing_stuck(
    how: str, python: str, lent: tuple[Path, ...]
) -> None:
    process_scripts.run("interrupt_at_random", how, "300", python=python, path=lent, limit=LIMIT)
