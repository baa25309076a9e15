"""What a broker tells of itself to Prometheus, where `metrics.listen` says so: `catalog` is what there is, `requests`
counts what nothing else counts, `collecting` looks at the rest when it is asked for, `endpoint` answers.

Promises: nothing is counted for it unless it is asked for by config; a scrape never holds the event loop for long.
"""
