"""The followers of a partition's log, as its leader tells them of appends and news. Loop-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition


class FollowerFeed(Protocol):
    """One follower's fetching, as the partition sees it."""

    def on_appended(self, partition: Partition) -> None:
        """There is more to copy."""

    def on_news(self, partition: Partition) -> None:
        """The high watermark, or the log's start, has risen, or damage was found in the log."""

    def on_epoch_end(self, partition: Partition) -> None:
        """The epoch is over; the partition is not watched any more."""


class Tails:
    """The feeds that watch the end of one partition's log."""

    __slots__ = ("feeds",)

    def __init__(self) -> None:
        self.feeds: dict[FollowerFeed, None] = {}

    def watch(self, feed: FollowerFeed) -> None:
        """Tell `feed` of appends, other news, and the end of this epoch."""
        self.feeds[feed] = None

    def unwatch(self, feed: FollowerFeed) -> None:
        self.feeds.pop(feed, None)

    def tell_news(self, partition: Partition) -> None:
        for feed in self.feeds:
            feed.on_news(partition)

    def tell_end(self, partition: Partition) -> None:
        """Tell of the end of the epoch. Nobody watches any more."""
        feeds, self.feeds = self.feeds, {}
        for feed in feeds:
            feed.on_epoch_end(partition)
