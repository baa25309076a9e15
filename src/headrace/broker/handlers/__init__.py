"""One file per Kafka API, each opening with its behaviour and version notes and exporting `HANDLER`.

To add one: write `handlers/<api>.py` with `HANDLER = Handler(ApiKey.X, (lowest, highest), handle)` and name it in
`ALL`. ApiVersions, dispatch and the docs follow from that.
"""
