"""Measure wsmux against what else there is, in one run, on one machine.

- ``peers/``: one module for each library that is measured; a new file is a new column.
- ``peer.py``: what such a module offers, and what the server's side of a line does.
- ``measures.py``: which figures there are; ``blocking.py``: what the client's side does for them.
- ``rpc_measures.py``, ``calls.py``: the same for remote calls.
- ``worker.py``, ``processes.py``: one client and one server process for each variant, if need be
  in a Python of its own; ``interpreters.py`` asks that what it has.
- ``spark/``: what PySpark does, in a table of its own.
- ``schedule.py``: which is measured when. ``results.py``: medians, ratios, targets, tables.
"""
