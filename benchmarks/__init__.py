"""Measure wsmux against what else there is, in one run, on one machine.

- ``peers/``: one module for each library that is measured; a new file is a new column.
- ``peer.py``: what such a module offers, and what the server's side of a line does.
- ``measures.py``: which figures there are; ``figure.py``: what one is; ``blocking.py``: what the
  client's side does for them; ``payload.py``: the bytes, and how they are checked.
- ``naive.py``: the mux that first comes to mind; ``sockets.py``: sockets and certificates for the
  servers.
- ``calls.py``: the same for remote calls; ``bus/``: for the bus; ``spark/``: for what PySpark does.
- ``worker.py``, ``processes.py``: one client and one server process for each variant, if need be
  in a Python of its own; ``environment.py`` asks that what it has.
- ``choosing.py``: what was asked for. ``schedule.py``: which is measured when.
- ``results.py``: medians, ratios, tables. ``targets.py``: what must be, and what is the goal.
- ``stored.py``: the JSON and its schema; ``comparing.py``: what got slower; ``plotting.py``: the
  figure.
"""
