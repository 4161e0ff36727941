"""Implement the command line: ``wsmux`` or ``python -m wsmux``."""
