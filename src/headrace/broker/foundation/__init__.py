"""The base of a broker, by its engine: an identity, the metadata's commit log, the way to other members, and logs."""
