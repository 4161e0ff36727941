"""Check tunnels and remote commands, and everything that refuses them."""
