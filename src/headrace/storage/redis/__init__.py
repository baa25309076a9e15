"""Redis and Valkey as a store: their address, a client, the functions that run in the server, and a model of them."""
