"""Run a real nginx on loopback, with the configuration that the documentation shows."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .certificates import Certificates
from .programs import needs
from .raw_peer import WAIT

__all__ = ["PAGE", "TEMPORARY", "configured", "documented", "nginx"]

PAGE = Path(__file__).parent.parent.parent / "docs" / "howto" / "flask.md"

# Folders that nginx makes, and that only root may have elsewhere.
TEMPORARY = "".join(
    f"{name}_temp_path {{folder}}/{name};"
    for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
)

CONFIGURATION = """
daemon off;
pid {folder}/pid;
error_log stderr warn;
{main}
events {{ worker_connections 64; }}
http {{
    access_log off;
    {temporary}
    server {{
        listen 127.0.0.1:{port}{tls};
        {location}
    }}
}}
"""


def documented() -> str:
    """Return the configuration that the documentation shows."""
    [block] = re.findall(r"^```nginx\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(block)


@contextmanager
def nginx(
    folder: Path,
    location: str,
    behind: int,
    certificates: Certificates | None = None,
    main: str = "",
) -> Iterator[int]:
    """Run nginx in front of a port; give its own, to which clients may connect at once."""
    [there] = re.findall(r"proxy_pass http://([\w.]+:\d+);", location)
    tls = ""
    if certificates is not None:
        tls = f" ssl; ssl_certificate {certificates.chain}; ssl_certificate_key {certificates.key}"
    location = location.replace(there, f"127.0.0.1:{behind}")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    text = CONFIGURATION.format(
        folder=folder,
        port=port,
        tls=tls,
        location=location,
        main=main,
        temporary=TEMPORARY.format(folder=folder),
    )
    with configured(folder, text, listener):
        yield port


@contextmanager
def configured(
    folder: Path, text: str, listener: socket.socket
) -> Iterator[subprocess.Popen[bytes]]:
    """Run nginx with a whole configuration, which stays in the foreground.

    It inherits the socket of the address that it listens on, as from the program that it follows in
    an upgrade of itself. So clients may connect before it has started, and nobody else gets the
    port. The socket is closed here.
    """
    with listener:
        # nginx leaves that as it is, and of two workers one would wait for the client of the other.
        listener.setblocking(False)
        written = folder / "nginx.conf"
        written.write_text(text)
        process = subprocess.Popen(
            [needs("nginx"), "-c", written, "-p", folder],
            env=os.environ | {"NGINX": f"{listener.fileno()};"},
            pass_fds=[listener.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    try:
        yield process
    finally:
        process.terminate()
        _, told = process.communicate(timeout=WAIT)
    # It says that it uses the inherited socket, and when it is closed with connections open.
    problems = [line for line in told.decode().splitlines() if "[emerg]" in line]
    assert not problems, problems
