"""Measure a cluster whose nodes are workers of gunicorn."""
