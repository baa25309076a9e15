"""A broker's metrics for Prometheus, served where `metrics.listen` says so.

`catalog` lists the metrics, `requests` counts what nothing else counts, `collecting` reads the rest on each scrape, and
`endpoint` answers.

Promises: nothing is counted for metrics unless the config asks for them. A scrape never holds the event loop for long.
"""
