"""Found by Spark itself, by this package's name: makes ``format("headrace")`` work with nothing to register."""

from headrace.spark.source import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
