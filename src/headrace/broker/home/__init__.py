"""What a broker finds on its own disk before it serves: its identity, its places, and the addresses of others."""
