"""Journal settings of simulated brokers: those of shipped ones, but so small that files are reused."""

from __future__ import annotations

import random
from typing import Final

from headrace.storage.log.journal.journal import JournalSettings

JOURNALED: Final = 0.9
"""Share of the runs whose brokers keep a journal."""
UNJOURNALED_LIVES: Final = 0.1
"""Share of their lives that have no journal."""
NONE: Final = JournalSettings(files_max=0)


class Journals:
    """The journal settings of one run. `chance` is a source of randomness of its own."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._are_kept = chance.random() < JOURNALED

    def of_a_life(self) -> JournalSettings:
        """The settings of one process. Seldom, one life or the whole run has no journal."""
        if not self._are_kept or self._chance.random() < UNJOURNALED_LIVES:
            return NONE
        return JournalSettings(
            file_bytes=self._chance.choice((16, 32, 64)) * 1024,
            files_max=self._chance.choice((3, 4)),
            after_rounds=self._chance.choice((1, 2, 4)),
        )
