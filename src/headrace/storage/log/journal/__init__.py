"""One journal for all logs of a broker, and its file format."""
