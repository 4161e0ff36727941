"""Write text to stdout, or to a file that is replaced atomically."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from pathlib import Path

__all__ = ["deliver"]


def deliver(text: str, path: Path | None) -> None:
    """Write text as UTF-8 to a file, or to stdout without one; lone surrogates are escaped.

    The file has either all of the text, or its previous content.
    """
    if path is None:
        sys.stdout.write(text)
        return
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is None or stat.S_ISREG(mode):
        _replace(path.resolve(), text, mode)  # replace the target of a symbolic link
    else:  # a device or pipe cannot be replaced
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _replace(path: Path, text: str, mode: int | None) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            if mode is not None:
                os.fchmod(descriptor, stat.S_IMODE(mode))
            file.write(text)
        draft.replace(path)
    except BaseException:
        draft.unlink()
        raise
