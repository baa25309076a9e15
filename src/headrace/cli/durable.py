"""`headrace durable`: show durable history, prove it, merge it, sweep unreferenced objects, and recover partitions from
it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headrace.base.errors import UsageError
from headrace.cli.command_config import with_cluster
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, whole_number
from headrace.cli.output import note, print_json, print_line, print_table

if TYPE_CHECKING:
    from headrace.operations.histories import History

T = TypeVar("T")

durable = typer.Typer(
    name="durable", help="Look at durable history, prove it, sweep its store, and go on from it.", no_args_is_help=True
)

StoreUrl = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Read this store by itself, with no broker: what was mirrored there."),
]
Topics = Annotated[list[str] | None, typer.Argument(metavar="[TOPIC...]", help="Only these.", show_default=False)]
OnePartition = Annotated[
    int | None, typer.Option("--partition", parser=whole_number, metavar="N", help="Only this one.")
]


def _run(work: Coroutine[Any, Any, T]) -> T:
    from headrace.net.loops import run

    return run(work)


def _histories(store: str | None, bootstrap: str, topics: list[str] | None, partition: int | None) -> list[History]:
    if store is not None:
        from headrace.cli.work.durable_views import mirrored

        found = mirrored(store, topics or ())
    else:
        from headrace.operations.histories import known

        found = with_cluster(bootstrap, lambda cluster: known(cluster, topics or ()))
    return [each for each in found if partition is None or each.partition == partition]


def _to_prove(store: str | None, bootstrap: str, topics: list[str] | None, partition: int | None) -> list[History]:
    """As `_histories`, with partitions that lack a catalog: a store by itself cannot tell these from partitions without
    history.
    """
    from headrace.cli.work import durable_views as views

    if store is None:
        found = _histories(None, bootstrap, topics, partition)
    else:
        there = views.mirrored_all(store, topics or ())
        found = [each for each in there if partition is None or each.partition == partition]
    return found


def _bare(bootstrap: str, found: list[History], topics: list[str] | None) -> list[str]:
    """Topics that are to be exported, and of which nothing is yet."""
    from headrace.operations.histories import exported_topics

    have = {each.topic for each in found}
    wanted = with_cluster(bootstrap, exported_topics)
    return [topic for topic in wanted if topic not in have and (not topics or topic in topics)]


@durable.command("list")
def list_(
    topics: Topics = None, store: StoreUrl = None, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False
) -> None:
    """List the partitions that have durable history, and how far each is behind its log."""
    found = _histories(store, bootstrap, topics, None)
    if store is None and (bare := _bare(bootstrap, found, topics)):
        note(f"nothing is exported yet of {', '.join(bare)}")
    if json:
        for each in found:
            print_json(each.summary())
        return
    rows = [
        (
            each.topic,
            each.partition,
            each.segments,
            each.start,
            each.end,
            each.bytes,
            "-" if each.lag is None else each.lag,
        )
        for each in found
    ]
    print_table(("TOPIC", "PARTITION", "SEGMENTS", "START", "END", "BYTES", "LAG"), rows)


@durable.command()
def describe(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Its name or id.", show_default=False)],
    partition: Annotated[
        int, typer.Option("--partition", parser=whole_number, metavar="N", help="Which partition.")
    ] = 0,
    store: StoreUrl = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show the catalog of one partition: its segments, and the hash chain that binds them. BYTES are those of the
    batches in the log, STORED those of the objects.
    """
    from headrace.cli.work.durable_views import mirrored_catalog
    from headrace.operations.histories import catalog as catalog_of

    found = _histories(store, bootstrap, [topic], partition)
    if not found:
        raise UsageError(
            f"Partition {partition} of topic '{topic}' has no durable history; see 'headrace durable list'."
        )
    if store is not None:
        catalog = mirrored_catalog(store, found[0])
    else:
        catalog = with_cluster(bootstrap, lambda cluster: catalog_of(cluster, found[0]))
    stored = sum(each.descriptor.object_bytes for each in catalog)
    if json:
        facts = {"stored_bytes": stored, "head": catalog.head}
        print_json(found[0].summary() | facts | {"segments": [each.to_json() for each in catalog]})
        return
    print_line(
        f"{found[0].topic}-{partition}  offsets {catalog.readable_start} to {catalog.end_offset}  "
        f"segments {len(catalog.entries)}  bytes {catalog.batch_bytes}  stored {stored}  head {catalog.head}"
    )
    print_line("")
    rows = [
        (
            one.start_offset,
            one.end_offset,
            one.leader_epoch,
            one.records,
            one.batch_bytes,
            one.object_bytes,
            one.sha256[:16],
            each.hash[:16],
        )
        for each in catalog
        for one in (each.descriptor,)
    ]
    print_table(("START", "END", "EPOCH", "RECORDS", "BYTES", "STORED", "SHA-256", "CHAIN"), rows)


@durable.command()
def verify(
    topics: Topics = None,
    partition: OnePartition = None,
    store: StoreUrl = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Read all of durable history back and prove it: objects, SHA-256, CRC32C, chain, no gap. Exits with 1 where
    anything does not hold. The proof is against the cluster's own catalog; with --store against the mirror in the
    store, with no broker.
    """
    from headrace.cli.work import durable_views as views

    found = _to_prove(store, bootstrap, topics, partition)
    verdicts = views.verified(found, store) if store is not None else _run(views.verified_of(bootstrap, found))
    if partition is not None and not verdicts:
        named = f" of topic '{topics[0]}'" if topics and len(topics) == 1 else ""
        raise UsageError(f"Partition {partition}{named} has no durable history; see 'headrace durable list'.")
    unnamed = views.nameless_problems(store) if store is not None and not topics else []
    wrong = bool(unnamed)
    for problem in unnamed:
        if json:
            print_json({"topic": None, "partition": None, "problems": [problem]})
        else:
            print_line(problem)
    for verdict in verdicts:
        wrong |= bool(verdict.problems)
        if json:
            print_json(verdict.summary())
        elif verdict.problems:
            for problem in verdict.problems:
                print_line(problem)
        else:
            print_line(
                f"{verdict.history.topic}-{verdict.history.partition}: {verdict.segments} segments, "
                f"{verdict.bytes} bytes, offsets {verdict.start} to {verdict.end}: all is as its catalog says"
            )
    if wrong:
        raise typer.Exit(1)
    if not verdicts and not json:
        note("there is no durable history")


@durable.command()
def sweep(
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Remove it; else it is only said what would go.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show unreferenced objects in the store, and remove those past their grace. Brokers do so by themselves every
    durable.sweep.interval.ms. Objects younger than durable.sweep.grace.ms are kept.
    """
    from headrace.cli.work import durable_views as views

    swept = _run(views.sweep(bootstrap, execute=execute))
    if json:
        print_json(asdict(swept))
    else:
        rows = [(each["key"], each["bytes"], each["age_ms"] // 1000, _fate(each)) for each in swept.strays]
        print_table(("OBJECT", "BYTES", "SECONDS OLD", "FATE"), rows)
        for problem in swept.problems:
            print_line(problem)
        due = sum(each["due"] for each in swept.strays)
        facts = f"removed {swept.removed} of {swept.count} objects, {swept.removed_bytes} of {swept.bytes} bytes"
        note(
            facts
            if execute
            else f"{swept.count} objects, {swept.bytes} bytes: nothing was removed; "
            f"--execute removes the {due} that are past their grace"
        )
    if swept.problems:
        raise typer.Exit(1)


@durable.command()
def merge(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.", show_default=False)],
    partition: OnePartition = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Do it; else it is only said what would be merged.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Put one durable segment in the place of several small contiguous ones.

    Of a compacted topic only the last record of each key stays. Its history is read for that, in several passes where
    it has very many keys. --dry-run reads nothing, and does not know which records would stay. Readers are not
    disturbed: the replaced objects are removed a minute later.
    """
    from headrace.cli.work import durable_views as views

    merged = _run(views.merge(bootstrap, topic, partition, execute=execute))
    if json:
        print_json(asdict(merged))
    else:
        for problem in merged.problems:
            print_line(problem)
        facts = f"{merged.before} segments of topic '{topic}', {merged.bytes} bytes"
        note(f"merged {facts}, into {merged.after}" if execute else f"{facts}, would become {merged.after}")
        if merged.unread:
            note(f"{merged.unread} other segments of it would be read, to keep the last record of each key")
    if merged.problems:
        raise typer.Exit(1)


@durable.command()
def recover(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.", show_default=False)],
    partition: OnePartition = None,
    to: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="BROKER", help="The broker that is to go on; else it is chosen."),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Do it: what was acknowledged and is not durable is given up."),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Have another broker go on behind durable history where all that held a partition are gone for good.

    Only for partitions without a leader, none of whose replicas lives. Without --accept-loss the command only says what
    it would do, and which records would be lost. A broker that comes back later is no longer a replica: its log is set
    aside, whole.
    """
    from headrace.cli.work import recovering

    found = _run(recovering.recover(bootstrap, topic, partition, to, execute=accept_loss))
    for one in found.partitions:
        if json:
            print_json({**one, "done": accept_loss and not one["refusal"]})
            continue
        for line in recovering.recovery_lines(one, done=accept_loss):
            print_line(line)
    if found.led:
        note(
            f"partitions of topic '{topic}' that are led, and left alone: {found.led}; where a broker that leads is "
            "gone for good, ask again once its session is over (broker.session.timeout.ms)"
        )
    refused = sum(bool(one["refusal"]) for one in found.partitions)
    if not found.partitions:
        note(f"no partition of topic '{topic}' is without a leader: nothing is to be recovered")
    elif not accept_loss and refused < len(found.partitions):
        note("nothing was changed: pass --accept-loss to have it done")
    if refused or not accept_loss or not found.partitions:
        raise typer.Exit(1)


def _fate(stray: dict[str, Any]) -> str:
    if stray["removed"]:
        return f"{stray['reason']}: removed"
    return f"{stray['reason']}: {'goes' if stray['due'] else 'stays for now'}"
