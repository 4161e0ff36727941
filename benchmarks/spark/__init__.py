"""Measure what Spark users do, outside of Spark and within, near a server and far from it.

``measures.py``: every figure, the session, and where servers are. ``bulk.py``, ``flight.py``: what
is read and written.
"""
