"""What was written by hand and recorded of each wire: one module a wire, data alone."""
