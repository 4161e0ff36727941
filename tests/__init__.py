"""Test wsmux: pure machines, threads, faults, real peers, the command line."""
