"""The work of an administrator, which the command line and the console share. It finds what is wrong with a cluster,
how the cluster stands, and what a change would do.

Promises: everything is asked through our own client. Nothing here prints, or knows a command's options.
"""
