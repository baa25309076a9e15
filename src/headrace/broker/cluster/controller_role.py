"""Runs the active controller's work on this broker, and ends it where another broker becomes the controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.broker.cluster.driver import MetadataDriver


class ControllerWork(Protocol):
    """Work that only the active controller does. Loop-only; it starts tasks, and never calls back into the driver."""

    def begin(self) -> None:
        """Begin: this node is the active controller from now on."""

    def end(self) -> None:
        """End: it is not any more, or was not. Nothing is decided after that."""


class ControllerRole:
    """One per broker. Each work begins when this node becomes the active controller, in their order."""

    def __init__(self, metadata: MetadataDriver, works: Sequence[ControllerWork]) -> None:
        self._metadata = metadata
        self._works = works
        self._is_running = False
        metadata.on_controller(self._on_controller)

    def start(self) -> None:
        """Do the work from now on, whenever this node is the controller."""
        self._is_running = True
        if self._metadata.is_controller:
            self._on_controller(True)

    def stop(self) -> None:
        """End the work, as the node stops. Where it is elected once more before its metadata stops, it works again, for
        nobody else would fence or elect meanwhile."""
        for work in self._works:
            work.end()

    def _on_controller(self, active: bool) -> None:
        if self._is_running:
            for work in self._works:
                work.end()
                if active:
                    work.begin()
