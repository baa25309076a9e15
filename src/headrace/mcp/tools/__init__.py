"""The tools: one module for each of the command line's groups, and one class in it, whose methods are the tools."""
