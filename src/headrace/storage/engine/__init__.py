"""The port to storage engines: what the broker asks of its logs, whatever they are kept in."""
