"""Measure the relay of the bus, and what goes over it.

- ``server.py``: what is measured: an echo over bare links, and relays.
- ``client.py``: every figure, and the clock. ``moving.py``: how messages go round, and who answers
  calls, returns messages or floods in a process beside.
"""
