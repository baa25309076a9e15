"""The command line: one file per group of commands, light to import; the work is in modules loaded when they run."""
