"""Builds the room of the upkeep: cleaning, examining, retention of logs, and reports."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.values import Value
from headrace.broker.core import Core
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.upkeep.cleaner import Cleaner, Pace
from headrace.broker.upkeep.examiner import Examiner
from headrace.broker.upkeep.housekeeper import Housekeeper
from headrace.broker.upkeep.reporter import Reporter
from headrace.metadata.configs import broker_value
from headrace.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Upkeep(Value):
    """The background work on this broker's logs."""

    housekeeper: Housekeeper
    reporter: Reporter | None
    """None: no reports are asked for."""
    cleaner: Cleaner
    examiner: Examiner

    def start(self) -> None:
        self.housekeeper.start()
        if self.reporter is not None:
            self.reporter.start()
        self.cleaner.start()
        self.examiner.start()

    async def stop(self) -> None:
        await self.examiner.stop()
        await self.cleaner.stop()
        if self.reporter is not None:
            self.reporter.stop()
        self.housekeeper.stop()


def build_upkeep(core: Core, partitions: Partitions) -> Upkeep:
    """Build the room."""
    return Upkeep(
        housekeeper=Housekeeper(
            interval_ms=core.number("log.retention.check.interval.ms"),
            expiration_ms=lambda: core.number("producer.id.expiration.ms"),
            partitions=partitions,
            clock=core.clock,
            on_bug=core.on_bug,
        ),
        reporter=Reporter(core.image, core.on_bug) if core.config.report_metadata else None,
        cleaner=Cleaner(
            partitions=partitions,
            clock=core.clock,
            random=core.random,
            pace=lambda image: _pace(core, image),
            image=core.image(),
            on_bug=core.on_bug,
        ),
        examiner=Examiner(
            partitions=partitions,
            clock=core.clock,
            interval_ms=core.number("log.scrub.interval.ms"),
            bytes_per_second=core.number("log.scrub.io.max.bytes.per.second"),
            on_bug=core.on_bug,
        ),
    )


def _pace(core: Core, image: MetadataImage) -> Pace:
    configs, node = core.config.configs, core.node
    return Pace(
        broker_value(image, configs, "log.cleaner.backoff.ms", node=node).number(),
        broker_value(image, configs, "log.cleaner.io.max.bytes.per.second", node=node).fraction(),
    )
