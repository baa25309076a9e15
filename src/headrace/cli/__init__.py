"""The command line: one file per group of commands, light to import. The work is in modules that are loaded when a
command runs.
"""
