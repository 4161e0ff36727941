"""A test without a program that it needs is skipped with a reason, or fails where it has to run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..helpers.programs import VARIABLE, absent, needs, package, required
from ..helpers.redis_server import RedisServer

TESTS = Path(__file__).parent.parent
NOWHERE = "no-such-program"

# These look for interpreters, and say themselves what is missing.
SEARCHING = {f"helpers/{name}.py" for name in ("programs", "autobahn/suite", "interop/installs")}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder on the PATH, with one program, where nothing is required."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv(VARIABLE, raising=False)
    return folder


def test_a_program_that_is_there_is_found(tools: Path) -> None:
    assert needs("cat") == str(tools / "cat")


def test_a_test_without_its_program_is_skipped_with_the_package_to_install(tools: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"no ip on the PATH \(Debian: iproute2\)"):
        needs("cat", "ip")


def test_a_test_without_a_required_program_fails(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "spark,programs")
    with pytest.raises(pytest.fail.Exception, match=f"{VARIABLE} has programs, but there is no"):
        needs(NOWHERE)


@pytest.mark.parametrize(("value", "told"), [("peers", True), ("programs", False), ("", False)])
def test_what_is_required_is_named(
    value: str, told: bool, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert required("peers") is told
    with pytest.raises((pytest.fail if told else pytest.skip).Exception, match="no peer"):
        absent("no peer", "peers")


def test_a_redis_server_that_is_not_installed_skips_whoever_starts_it(tools: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="no redis-server on the PATH"):
        RedisServer(tools).start()


def test_a_module_without_its_package_is_skipped_with_the_extra_to_install() -> None:
    told = re.escape("needs no_such_module: pip install 'wsmux-streams[spark]'")
    with pytest.raises(pytest.skip.Exception, match=told):
        package("no_such_module", "spark")


def test_no_other_module_decides_what_a_missing_program_means() -> None:
    searching = {
        path.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("*.py")
        if re.search(r"(?<!SHELL = )shutil\.which\(", path.read_text())
    }
    assert searching - {"testing/test_programs.py"} == SEARCHING


def test_ci_requires_programs_of_every_step_that_runs_tests() -> None:
    text = (TESTS.parent / ".ci" / "run").read_text()
    before, exported, after = text.partition(f"\nexport {VARIABLE}=programs\n")
    assert exported
    assert "pytest" not in before
    values = re.findall(rf"{VARIABLE}=(\S+)", after)
    assert sorted(values) == ["programs,peers", "programs,spark"]
