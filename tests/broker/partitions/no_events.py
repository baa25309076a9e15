"""Events of partitions that stand alone: nobody hears of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.storage.engine.logs import PartitionLog


class NoEvents:
    """`PartitionEvents` of a broker that has nothing but these partitions."""

    def on_led(self, partition: Any) -> None: ...

    def on_forgotten(self, partition: Any) -> None: ...

    def copy(self, copy: Any) -> None: ...

    def drop(self, key: Any) -> None: ...

    def is_to_begin_again(self, copy: Any) -> bool:
        return False

    def on_let_in(self, key: Any) -> None: ...

    def propose(self, partition: Any, wanted: Any) -> None: ...

    def forward(self, key: Any, records: Any, needs_isr: bool, done: Any) -> bool:
        return False

    def suspect(self, replica: Any, offset: Any) -> bool:
        return False

    def on_damaged(self, key: Any) -> None: ...

    def on_failed(self, key: Any) -> None: ...

    async def release(self, logs: Sequence[PartitionLog]) -> None: ...
