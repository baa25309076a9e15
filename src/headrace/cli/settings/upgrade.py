"""`headrace upgrade`: the feature level of the cluster, raised once all brokers run a release that knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.command_config import with_cluster
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, whole_number
from headrace.cli.output import print_json, print_line, print_table
from headrace.metadata.levels import METADATA_LEVEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.net.client.cluster import Cluster
    from headrace.net.client.members import BrokerView
    from headrace.wire.ailments import Levels


def upgrade(
    level: Annotated[
        int | None,
        typer.Option(
            "--level",
            parser=whole_number,
            metavar="N",
            help="Raise it to this level; without it, to the highest that any broker knows.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what each broker knows, and whether it would be refused.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Raise the cluster's feature level, once every broker runs the new release. It is refused while one does not.

    Until then everything is written as the release of before reads it, and brokers can go back to that. A level never
    falls: after this no broker of a release that does not know it can come.
    """

    async def action(cluster: Cluster) -> tuple[Sequence[BrokerView], Levels, int]:
        from headrace.net.client.members import Members

        members = Members(cluster)
        brokers, known = await members.brokers(), await members.levels()
        wanted = max((highest for _, highest in known.known.values()), default=0) if level is None else level
        if wanted != known.level:
            able = [each.id for each in brokers if not each.fenced and known.known.get(each.id, (0, 0))[1] > 0]
            if not json:
                _print_brokers(brokers, known)
            if not able:
                raise HeadraceError(
                    f"No live broker is known to know feature level {wanted}: upgrade all of them first."
                )
            await members.finalize_level(wanted, asked=able[0], validate_only=dry_run)
        elif not json:
            _print_brokers(brokers, known)
        return brokers, known, wanted

    brokers, known, wanted = with_cluster(bootstrap, action)
    if json:
        told = {str(each.id): _range(known, each.id) for each in brokers}
        print_json({"level": known.level, "raised_to": wanted, "dry_run": dry_run, "brokers": told})
    elif wanted == known.level < METADATA_LEVEL and level is None:
        print_line(
            f"the cluster is at feature level {wanted}: there is nothing to raise before its brokers run "
            f"the release of this command, which knows {METADATA_LEVEL}"
        )
    elif wanted == known.level:
        print_line(f"the cluster is at feature level {wanted}: there is nothing to raise")
    elif dry_run:
        print_line(f"the cluster is at feature level {known.level}, and would be raised to {wanted}")
    else:
        print_line(f"the cluster was at feature level {known.level}, and is at {wanted} now")


def _print_brokers(brokers: Sequence[BrokerView], known: Levels) -> None:
    rows = [
        (each.id, "fenced" if each.fenced else "live", "{} to {}".format(*_range(known, each.id))) for each in brokers
    ]
    print_table(("BROKER", "STATE", "KNOWS LEVELS"), rows)
    print_line("")


def _range(known: Levels, broker: int) -> tuple[int, int]:
    """The lowest and the highest level that the broker knows. One that is missing has come since."""
    return known.known.get(broker, (0, 0))
