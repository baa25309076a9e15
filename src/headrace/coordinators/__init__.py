"""State machines over internal topics. Sans-IO: an event and a moment go in, a new state and effects come out."""
