"""Measure the relay of the bus, and what goes over it.

- ``directory.py``: the twins, whose keys come from their numbers, so that every process knows them.
- ``server.py``: what is measured: an echo over bare links, and relays.
- ``moving.py``: how many messages go round. ``client.py``: every figure, and the clock.
- ``companion.py``: the process of who answers calls, and of who floods.
"""
