"""Configure gunicorn for the demonstration; names that an older gunicorn lacks are ignored."""

from __future__ import annotations

workers = 1
# One for the multiplexed connection, and room for the per-file WebSockets of 32 threads, each of
# which may meet one that is still being closed.
threads = 96
loglevel = "warning"
timeout = 0
graceful_timeout = 1
control_socket_disable = True
