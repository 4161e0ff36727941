"""Measure the relay of the bus, and what goes over it.

- ``server.py``: what is measured: an echo over bare links, and relays.
- ``moving.py``: how many messages go round. ``client.py``: every figure, and the clock.
- ``companion.py``: the process of who answers calls, and of who floods.
"""
