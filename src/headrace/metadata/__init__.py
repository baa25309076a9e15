"""Cluster state: its events, the immutable image that they add up to, and the effect of a change on one broker.
Promises: state changes only by `MetadataImage.replay`. Never decides and does no IO."""
