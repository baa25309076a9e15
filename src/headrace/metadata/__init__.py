"""Cluster state: the events that make it, the immutable image that they add up to, and what a change of it means to one
broker. Promises: state changes only by `MetadataImage.replay`. Never decides and does no IO."""
