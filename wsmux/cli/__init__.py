"""Offer the library at the command line: ``wsmux`` or ``python -m wsmux``."""
