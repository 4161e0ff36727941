"""What several tests need: peers, servers, wires, programs, waits, ports."""
