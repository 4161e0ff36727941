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

__all__ = ["PAGE", "documented", "nginx"]

PAGE = Path(__file__).parent.parent.parent / "docs" / "howto" / "flask.md"

CONFIGURATION = """
daemon off;
pid {folder}/pid;
error_log stderr warn;
{main}
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
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
    """Run nginx in front of a port; give its own.

    It inherits the socket, as from the program that it follows in an upgrade of itself. So clients
    may connect before it has started, and nobody else gets the port.
    """
    [there] = re.findall(r"proxy_pass http://([\w.]+:\d+);", location)
    tls = ""
    if certificates is not None:
        tls = f" ssl; ssl_certificate {certificates.chain}; ssl_certificate_key {certificates.key}"
    executable = needs("nginx")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        written = folder / "nginx.conf"
        location = location.replace(there, f"127.0.0.1:{behind}")
        written.write_text(
            CONFIGURATION.format(folder=folder, port=port, tls=tls, location=location, main=main)
        )
        process = subprocess.Popen(
            [executable, "-c", written, "-p", folder],
            env=os.environ | {"NGINX": f"{listener.fileno()};"},
            pass_fds=[listener.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    try:
        yield port
    finally:
        process.terminate()
        _, told = process.communicate(timeout=WAIT)
    # It says that it uses the inherited socket, and when it is closed with connections open.
    problems = [line for line in told.decode().splitlines() if "[emerg]" in line]
    assert not problems, problems
