"""Consumer groups: the shards that this broker coordinates, their timers, and the writes to the offsets topic."""
