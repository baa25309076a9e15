"""Found by Spark itself, by this package's name: makes ``format("headrace")`` work with nothing to register."""

from headrace.spark.source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
