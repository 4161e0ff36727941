"""Configure gunicorn for the demonstration; settings that an older gunicorn lacks are ignored."""

from __future__ import annotations

workers = 1
# The multiplexed connection holds none. Enough for the per-file WebSockets of 32 threads, whose
# previous ones may still be closing.
threads = 96
loglevel = "warning"
timeout = 0
graceful_timeout = 1
control_socket_disable = True
