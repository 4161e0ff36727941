"""Models of two machines on a slow wire, for Hypothesis to run: one module a wire."""
