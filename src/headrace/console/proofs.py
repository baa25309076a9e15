"""Proofs of durable history that viewers have asked for: each goes on by itself, and tells how far it is.

Promises: a proof reads, and changes nothing. Few go on at once, whoever asks for them. A session's end ends its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from headrace.base.errors import HeadraceError
from headrace.base.limits import CONSOLE_PROOFS_MAX
from headrace.console.state import Console
from headrace.operations.histories import History
from headrace.operations.proving import Verdict, proved


@dataclass(slots=True, eq=False)
class Proof:
    """One proof."""

    history: History
    read: int = 0
    """Bytes of batches that are proven so far."""
    waits: bool = True
    """Whether others go first."""
    verdict: Verdict | None = None
    trouble: str = ""
    """Why it could not be made; empty: it could, or goes on."""

    @property
    def is_over(self) -> bool:
        return self.verdict is not None or bool(self.trouble)

    def on_read(self, count: int) -> None:
        """Called in a thread."""
        self.read += count


def begin(console: Console, history: History) -> None:
    """Prove it, unless that is going on."""
    place = (history.topic, history.partition)
    known = console.proofs.get(place)
    if known is not None and not known.is_over:
        return
    console.proofs.pop(place, None)
    over = [key for key, each in console.proofs.items() if each.is_over]
    for key in over[: max(0, len(console.proofs) + 1 - CONSOLE_PROOFS_MAX)]:
        del console.proofs[key]
    if len(console.proofs) >= CONSOLE_PROOFS_MAX:
        return
    proof = console.proofs[place] = Proof(history)
    console.work(_run(console, proof))


async def _run(console: Console, proof: Proof) -> None:
    try:
        async with console.settings.verifications:
            proof.waits = False
            (proof.verdict,) = await proved(console.cluster, [proof.history], on_read=proof.on_read)
    except (HeadraceError, OSError, TimeoutError) as error:
        proof.trouble = str(error) or "No answer came in time."
    except asyncio.CancelledError:
        proof.trouble = "It was ended with the session."
        raise
