"""Carries out the end of a batch in the driver: effects of `Ending` become requests to brokers."""

from __future__ import annotations

from typing import assert_never

from headrace.base.errors import HeadraceError
from headrace.net.client.cluster import Cluster
from headrace.net.client.transactions import Transactions
from headrace.net.client.two_phase import TwoPhase
from headrace.spark.write.exactly import ending as core
from headrace.spark.write.exactly.ledger import Ledger
from headrace.spark.write.exactly.names import Finished, TaskName, pattern_of

OPEN = "Ongoing"


class TransactionsLost(HeadraceError):  # noqa: N818 - what came of a batch
    """Somebody else has ended transactions of a batch."""

    def __init__(self, batch: int, lost: tuple[str, ...], *, is_decided: bool) -> None:
        outcome = "is committed without their rows" if is_decided else "is not committed"
        super().__init__(
            f"Batch {batch} {outcome}: somebody else has aborted {len(lost)} of its transactions, such as '{lost[0]}'; "
            "leave transactions of a running query alone."
        )


class OutcomeForgotten(HeadraceError):  # noqa: N818 - what came of a batch
    """Transactions of a decided batch have ended, and nobody knows how."""

    def __init__(self, query: str, batch: int, unknown: tuple[str, ...]) -> None:
        super().__init__(
            f"Batch {batch} of query '{query}' was decided by an earlier run, and nobody can tell any more whether "
            f"{len(unknown)} of its transactions were committed, such as '{unknown[0]}': their coordinators have "
            "forgotten that (transactional.id.expiration.ms); look whether the batch's rows are there, and go on "
            "behind them with a new checkpoint or queryId."
        )


async def carry_out(cluster: Cluster, query: str, ending: core.Ending) -> core.Done:
    """End the batch, and wait until readers of committed records see that. Raises TransactionsLost, OutcomeForgotten,
    ConcurrentWrite, ClientError, CorruptData; it may then be tried again.
    """
    ledger, two_phase = Ledger(cluster, query), TwoPhase(cluster)
    effect, ended = ending.begin(), list[str]()
    while not isinstance(effect, core.Done):
        if isinstance(effect, core.CommitAll):
            ended += (each.name for each in effect.transactions)
        ending, effect = ending.step(await outcome(cluster, query, ledger, two_phase, effect))
    await two_phase.settle(ended)
    if effect.lost and ending.winners is not None:
        raise TransactionsLost(ending.batch, effect.lost, is_decided=effect.followed is not None)
    if effect.unknown and ending.winners is not None:
        raise OutcomeForgotten(query, ending.batch, effect.unknown)
    return effect


async def outcome(cluster: Cluster, query: str, ledger: Ledger, two_phase: TwoPhase, effect: core.Effect) -> core.Event:
    """The event that comes of one effect. Raises as `carry_out`."""
    match effect:
        case core.Claim(claim):
            return core.Claimed(*await ledger.claim(claim))
        case core.ListOpen():
            return core.Listed(frozenset(name.text for name in await open_of(cluster, query=query, fresh=False)))
        case core.CheckOpen(names):
            found = await two_phase.describe(names)
            return core.Checked(tuple(name for name in names if name not in found or not found[name].is_open))
        case core.Confirm():
            await ledger.settle(confirm=True)
            return core.Settled()
        case core.Drop():
            await ledger.settle(confirm=False)
            return core.Settled()
        case core.CommitAll(transactions):
            return core.Committed(*await two_phase.commit_all(transactions))
        case core.Note(followed):
            await ledger.note(Finished.of(followed))
            return core.Noted()
        case core.AbortAll(names):
            await two_phase.abort_all(names)
            return core.Aborted()
        case core.Done():
            raise AssertionError("it is done")
        case _:
            assert_never(effect)


async def open_of(
    cluster: Cluster, *, query: str | None = None, run: str | None = None, fresh: bool = True
) -> list[TaskName]:
    """The open transactions of a query's tasks, or of runs whose names begin so. Not `fresh`: at the brokers that the
    last metadata told of. Raises ClientError."""
    listed = await Transactions(cluster).list_all([OPEN], pattern_of(query=query, run=run), fresh=fresh)
    names = [TaskName.parse(each.name) for each in listed if each.state == OPEN]
    return [
        name for name in names if name is not None and query in (None, name.query) and name.run.startswith(run or "")
    ]
