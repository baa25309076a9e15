"""What everything stands on: identities, limits, errors and the ports to the world. Imports nothing of ours."""
