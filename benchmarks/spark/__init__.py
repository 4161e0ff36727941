"""Measure what Spark users do, outside of Spark and within, near a server and far from it.

- ``rows/``: one module for each subject; a new file is new rows of the table. ``row.py`` says what
  a row is, and what ratios are judged.
- ``server.py``: what is called. ``delayline.py``: how it gets far away.
- ``worker.py``, ``workers.py``: the processes: a server, a delay line, a client, a Spark session.
- ``command.py``: which is measured when. ``report.py``: medians, ratios, verdicts, the table.
"""
