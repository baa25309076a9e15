"""An asyncio Kafka client on Headrace's own codecs, used by the command line, Spark's reader and (later) followers.

`cluster.Cluster` finds brokers and leaders; `admin.Admin`, `producer.Producer`, `consumer.Consumer` and
`offsets.list_offsets` work on one. Every failure is a `HeadraceError` of one sentence, every retry is bounded.
"""
