"""Speak River v2.0: calls of four kinds over sessions that survive lost connections."""
