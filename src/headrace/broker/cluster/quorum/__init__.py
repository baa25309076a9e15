"""The parts of the metadata driver: the log's writer, the applier, pending decisions, and the members."""
