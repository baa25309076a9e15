"""The driver's side of an exactly-once write, for code that blocks: checked, committed, or given up."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple
from uuid import uuid4

from headrace.net.client.cluster import Cluster
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.net.client.two_phase import Prepared, TwoPhase
from headrace.spark.brokers import Brokers, kept_brokers
from headrace.spark.write.exactly.driving import carry_out, open_of
from headrace.spark.write.exactly.ending import Ending
from headrace.spark.write.exactly.topic import LEDGER, check_ledger

log = logging.getLogger(__name__)

WISH: Final = "Option delivery=exactly-once"
RUN_DIGITS: Final = 16


class Batch(NamedTuple):
    """One batch of a query, in one run of it."""

    query: str | None
    """None: no task has told it."""
    number: int
    run: str
    """The name of the run. Where no task has told it, its beginning."""


def new_run(start: str = "") -> str:
    """The name of a planned write, which no other one has. It begins with `start`, hexadecimal digits."""
    return start + uuid4().hex[: RUN_DIGITS - len(start)]


def check_brokers(brokers: Brokers) -> None:
    """Raise UsageError where they cannot write exactly once; ClientError."""

    async def check(cluster: Cluster) -> None:
        two_phase = TwoPhase(cluster)
        await two_phase.know_coordinators(LEDGER)
        await two_phase.check_two_phase(WISH)
        await check_ledger(cluster)

    brokers.ask(check)


def commit(bootstrap: str, batch: Batch, winners: tuple[Prepared, ...], security: ClientSecurity = PLAIN) -> None:
    """Commit the batch, unless it is committed already: then finish that. Raises TransactionsLost, OutcomeForgotten,
    ConcurrentWrite, ClientError, CorruptData.
    """
    query = batch.query
    assert query is not None, "a task has told it"
    ending = Ending(batch=batch.number, run=batch.run, winners=winners)
    with kept_brokers(bootstrap, security) as brokers:
        done = brokers.ask(lambda cluster: carry_out(cluster, query, ending))
    assert done.followed is not None, "it is committed, or an error was raised"
    if done.followed.run != batch.run:
        log.info("Batch %d of query %s was written by an earlier run: its rows are there once.", batch.number, query)


def give_up(bootstrap: str, batch: Batch, security: ClientSecurity = PLAIN) -> None:
    """Abort all that this run has written of the batch, unless it is committed already. Raises ConcurrentWrite,
    ClientError, CorruptData.
    """

    async def end(cluster: Cluster) -> None:
        if batch.query is not None:
            runs = {(batch.query, batch.run)}
        else:
            open_ = await open_of(cluster, run=batch.run)
            runs = {(name.query, name.run) for name in open_ if name.batch == batch.number}
        for query, run in sorted(runs):
            done = await carry_out(cluster, query, Ending(batch=batch.number, run=run, winners=None))
            if done.followed is not None:
                log.warning("Batch %d of query %s had been committed before it failed.", batch.number, query)

    with Brokers(bootstrap, security) as brokers:
        brokers.ask(end)
