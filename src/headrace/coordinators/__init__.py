"""State machines over internal topics. Sans-IO: they take an event and a moment, and return a new state and effects."""
