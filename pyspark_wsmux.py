"""Let Spark find ``format("wsmux")``: it imports every module whose name begins like this one.

One of them that cannot be imported hides all sources that are found this way. So nothing is
raised here, and without pyspark there is nothing to find.
"""

from __future__ import annotations

import logging

try:
    from wsmux.spark.source.datasource import DefaultSource
except Exception as error:  # whatever it is, other people's sources are to be found
    logging.getLogger("wsmux.spark").debug("format('wsmux') is not there: %s", error)
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
