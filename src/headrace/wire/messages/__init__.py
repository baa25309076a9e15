"""The messages of the Kafka protocol, a module each. Generated: see tools/generate_wire.py."""
