"""How gunicorn runs the site; it reads this file where it is started, as ``gunicorn``."""

import os

wsgi_app = "app:app"
bind = os.environ.get("BIND", "127.0.0.1:8000")  # nginx alone; 0.0.0.0:8000 in a container
workers = 4  # one or two for each processor
worker_class = "gthread"
threads = 8  # for plain requests: connections hold none
timeout = 30  # a reload kills what takes longer, and a worker that stands still
graceful_timeout = 30  # a stop does; both leave the 20 s of the drain, and time to close
# No preload_app: each worker reads the code anew, so that HUP loads what was deployed.
control_socket_disable = True  # it would be in the home folder, which services do not have
