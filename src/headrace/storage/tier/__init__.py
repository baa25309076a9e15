"""Durable segments: a partition's history as write-once objects that anybody can open and prove.

`format` defines one object byte by byte, `export` makes one, and `merge` makes one of several. `mirror` and `chunks`
keep the catalog beside the objects, and `reader` opens a store with no broker. The metadata
(`headrace.metadata.segments`) decide which segments are published, never this package.

A store holds, as `/`-separated keys (JSON documents are UTF-8):

| key | content |
|---|---|
| `clusters/<cluster id>/topics/<topic id>/<partition>/<start>-<end>-<epoch>-<hash>.segment` | a durable segment |
| `storage/names/<topic id>` | JSON: the topic's name, partitions, cluster |
| `storage/topics/<topic id>/<partition>/segments/<start>` | JSON: one catalog entry, chained to the one before |
| `storage/topics/<topic id>/<partition>/chunks/<start>-<end>-<hash>` | JSON: very many entries, chained |
| `storage/topics/<topic id>/<partition>/segments/cur` | JSON: the last segment |
| `storage/topics/<topic id>/<partition>/state` | JSON: the catalog's ends, head and chunks |

The key of a segment that was made of others has, before its hash, the leader epoch in which it was made. Offsets have
20 digits, epochs 10. `<hash>` is the first 16 digits of the object's SHA-256. So an object is named by its content, and
two exports of one range can never overwrite each other.
"""
