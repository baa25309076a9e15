"""Durable segments: a partition's history as write-once objects that anybody can open and prove.

`format` is one object byte by byte, `export` makes one, `merge` one of several, `mirror` and `chunks` keep the catalog
beside the objects, `reader` opens a store with no broker. What is published is decided in the metadata
(`headrace.metadata.segments`), never here.

A store holds, as `/`-separated keys (JSON documents are UTF-8)::

    clusters/<cluster id>/topics/<topic id>/<partition>/<start>-<end>-<epoch>-<hash>.segment   a durable segment
    storage/names/<topic id>                                        JSON: the topic's name, partitions, cluster
    storage/topics/<topic id>/<partition>/segments/<start>          JSON: one catalog entry, chained to the one before
    storage/topics/<topic id>/<partition>/chunks/<start>-<end>-<hash>       JSON: very many entries, chained
    storage/topics/<topic id>/<partition>/segments/cur              JSON: which segment is the last
    storage/topics/<topic id>/<partition>/state                     JSON: the catalog's ends, head and chunks

A segment that was made of others has, before its hash, the leader epoch in which it was.
Offsets have 20 digits, epochs 10, `<hash>` is the first 16 digits of the object's SHA-256: an object is named by what
it holds, so that two exports of one range can never overwrite each other.
"""
