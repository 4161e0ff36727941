"""Measure wsmux against what else there is, in one run, on one machine.

- ``peers/``: one module for each library that is measured; a new file is a new column.
- ``peer.py``: what a figure is, and what such a module offers; ``words.py``: what both sides of a
  line say.
- ``measures.py``: which figures there are; ``blocking.py``: what the client's side does for them;
  ``bus/``: the same for the bus; ``spark/``: for what PySpark does; ``cluster/``: for a cluster.
- ``sockets.py``: sockets and certificates for the servers; ``programs.py``: Redis and others.
- ``worker.py``, ``processes.py``: one client and one server process for each variant, if need be
  in a Python of its own; ``environment.py`` asks that what it has.
- ``schedule.py``: what of what was asked for is measured, and when.
- ``results.py``: medians, ratios, tables, and the JSON. ``targets.py``: what must be, and what is
  the goal.
"""
