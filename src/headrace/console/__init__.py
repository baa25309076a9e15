"""The web console: a cluster in a browser.

It asks through our own client, for all viewers together. It changes nothing unless it was started with
`--allow-changes`.
"""
