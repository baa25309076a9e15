"""The ways to Redis servers: connections, clients of each topology, and looks at a server."""
