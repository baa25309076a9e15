"""The base of all packages: identities, limits, errors and the ports to the world. Imports nothing else of Headrace."""
