"""Send the flights of a year through PySpark, which is the second half of ``wsmux demo``.

- ``demonstration.py``: the processes, the jobs in their order, what is told.
- ``data.py``: the flights, into a store; and what pandas makes of them. ``check.py`` compares.
- ``server.py``: what flights are enriched with. ``job.py``: what Spark does. ``driver.py`` starts
  both, and gives the orders. ``plot.py``: the picture.
"""
