"""`headrace topic move`, `moves` and `unload`, and `headrace broker drain`: partitions move to other brokers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.base.errors import UsageError
from headrace.cli.command_config import with_cluster
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, plain_number, whole_number
from headrace.cli.output import print_json, print_line, print_table
from headrace.operations.reaching import since

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.net.client.cluster import Cluster
    from headrace.wire.moves import AskedView, MoveAnswer, MoveRequest, MoveView

Place = tuple[str, int]
LOOK_EVERY_S = 0.1
MEGABYTE = 1_000_000

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)]
Partition = Annotated[list[int] | None, typer.Option(help="Only this partition; may be given again.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be moved, and how; move nothing.")]
Throttle = Annotated[
    float | None,
    typer.Option(
        parser=plain_number, metavar="MB/S", help="Most that is exported of each partition before it is sealed."
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Until all of it is there, telling how far it is.")]


def move(
    name: Name,
    to: Annotated[int, typer.Option(parser=whole_number, metavar="BROKER", help="The broker that is to own it.")],
    partition: Partition = None,
    dry_run: DryRun = False,
    throttle: Throttle = None,
    wait: Wait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Move a topic's partitions to another broker through the durable store; only data that it lacks are exported
    first.
    """
    from headrace.wire.moves import MOVE, MoveRequest

    request = MoveRequest(MOVE, name, tuple(partition or ()), None, to, _rate(throttle), dry_run)
    _ask(bootstrap, request, wait=wait, json=json)


def unload(
    name: Name,
    partition: Partition = None,
    dry_run: DryRun = False,
    throttle: Throttle = None,
    wait: Wait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Move a topic's partitions away from the brokers that lead them; the controller chooses the new owners."""
    from headrace.wire.moves import MOVE, MoveRequest

    request = MoveRequest(MOVE, name, tuple(partition or ()), None, None, _rate(throttle), dry_run)
    _ask(bootstrap, request, wait=wait, json=json)


def drain(
    id_: Annotated[int, typer.Argument(parser=whole_number, metavar="ID", help="The broker's id.", show_default=False)],
    dry_run: DryRun = False,
    throttle: Throttle = None,
    wait: Wait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Move all partitions away from a broker, so that it can be stopped for good; the controller chooses the new
    owners.
    """
    from headrace.wire.moves import MOVE, MoveRequest

    request = MoveRequest(MOVE, broker=id_, bytes_per_second=_rate(throttle), dry_run=dry_run)
    _ask(bootstrap, request, wait=wait, json=json)


def moves(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Show the moves that are under way."""

    async def action(cluster: Cluster) -> list[MoveView]:
        from headrace.net.client.moves import under_way

        return (await under_way(cluster))[0]

    found = with_cluster(bootstrap, action)
    if json:
        for one in found:
            print_json(one._asdict())
        return
    rows = [
        (
            f"{one.topic}-{one.partition}",
            one.source,
            one.target,
            one.phase,
            "-" if one.bytes_left < 0 else one.bytes_left,
            one.obstacle + since(one.since_ms) if one.obstacle else "-",
        )
        for one in found
    ]
    print_table(("PARTITION", "FROM", "TO", "PHASE", "BYTES LEFT", "HELD UP BY"), rows)


def _rate(throttle: float | None) -> int:
    if throttle is None:
        return -1
    if throttle <= 0:
        raise UsageError(f"--throttle {throttle:g} is no rate: give megabytes a second, like --throttle 10.")
    return int(throttle * MEGABYTE)


def _ask(bootstrap: str, request: MoveRequest, *, wait: bool, json: bool) -> None:
    async def action(cluster: Cluster) -> tuple[MoveAnswer, bool]:
        from headrace.net.client.moves import move as ask

        answer = await ask(cluster, request)
        going = [one for one in answer.asked if not one.refusal]
        if request.dry_run:
            await _tell_plan(cluster, answer.asked, going, is_drain=request.broker is not None, json=json)
            return answer, True
        for one in answer.asked:
            _print_asked(one, None, dry_run=False, json=json)
        return answer, not (wait and going) or await Watch(cluster, going, json=json).until_over()

    answer, arrived = with_cluster(bootstrap, action)
    if not answer.asked and not json:
        print_line("nothing is to be moved: it is there already, or on its way")
    if not arrived or any(one.refusal for one in answer.asked):
        raise typer.Exit(1)


async def _tell_plan(
    cluster: Cluster, asked: Sequence[AskedView], going: list[AskedView], *, is_drain: bool, json: bool
) -> None:
    """Print the partitions that would move, with the cost. In JSON the last line of a drain has all of it."""
    from headrace.operations.changes.costs import cost_of, told

    cost = await cost_of(cluster, going)
    for one in asked:
        _print_asked(one, cost.bytes_left.get(one), dry_run=True, json=json)
    if not going:
        return
    if not json:
        for sentence in told(cost, lambda size: f"{size:,} bytes"):
            print_line(sentence)
    elif is_drain:
        pause = None if cost.pause is None else cost.pause._asdict()
        print_json({"dry_run": True, "cost": {"targets": [each._asdict() for each in cost.by_target], "pause": pause}})


def _print_asked(one: AskedView, size: int | None, *, dry_run: bool, json: bool) -> None:
    if json:
        exported, copied = (size, None) if one.is_handed_over else (None, size)
        print_json({**one._asdict(), "dry_run": dry_run, "bytes_to_export": exported, "bytes_to_copy": copied})
        return
    print_line(f"{one.topic}-{one.partition}: {one.refusal or _way(one, size, dry_run=dry_run)}")


def _way(one: AskedView, size: int | None, *, dry_run: bool) -> str:
    from headrace.operations.changes.costs import way_of

    if one.has_copy:
        return f"broker {one.target} has a copy already, and {'would be' if dry_run else 'is'} the first to lead it"
    report = f"{'would go ' if dry_run else ''}from broker {one.source} to broker {one.target}, {way_of(one)}"
    if dry_run and size is not None:
        report += f"; {size} bytes are still to be exported" if one.is_handed_over else f"; its log has {size} bytes"
    return report


class Watch:
    """Reports the progress of moves, until all of them are over."""

    def __init__(self, cluster: Cluster, going: list[AskedView], *, json: bool) -> None:
        self._cluster = cluster
        self._json = json
        self._targets: dict[Place, int] = {(one.topic, one.partition): one.target for one in going}
        self._report: dict[Place, str] = {}
        self._begun = time.monotonic()
        self._first: dict[Place, int] = {}
        """Bytes that were left at the first look."""

    async def until_over(self) -> bool:
        """Wait until all moves are over. Returns whether all partitions are where they were to go."""
        import asyncio

        from headrace.net.client.moves import under_way

        arrived = True
        while self._targets:
            views, finished = await under_way(self._cluster)
            by_place = {(one.topic, one.partition): one for one in views}
            pauses = {(one.topic, one.partition): one.pause_ms for one in finished}
            self._cluster.forget({topic for topic, _ in self._targets})
            for place, target in list(self._targets.items()):
                if (view := by_place.get(place)) is not None:
                    self._tell(place, view)
                elif (owner := await self._owner(place)) is not None:
                    del self._targets[place]
                    arrived = self._tell_end(place, owner, target, pauses.get(place)) and arrived
            if self._targets:
                await asyncio.sleep(LOOK_EVERY_S)
        return arrived

    async def _owner(self, place: Place) -> int | None:
        """The leader of a partition, once no reassignment of it is under way; None before that, or without a leader."""
        from headrace.net.client.replicas.reassignments import ongoing

        if await ongoing(self._cluster, place[0], [place[1]]):
            return None
        view = await self._cluster.existing_topic(place[0])
        leader = next(int(part.leader) for part in view.partitions if part.index == place[1])
        return None if leader < 0 else leader

    def _tell(self, place: Place, view: MoveView) -> None:
        first = self._first.setdefault(place, max(view.bytes_left, 0))
        left = self._time_left(first, view.bytes_left)
        text = f"{place[0]}-{place[1]}: {view.phase}"
        if view.bytes_left >= 0:
            text += f", {view.bytes_left} bytes left{left}"
        if view.obstacle:
            text += f", held up: {view.obstacle}"
        if self._report.get(place) != text:
            self._report[place] = text
            print_json(view._asdict()) if self._json else print_line(
                text + (since(view.since_ms) if view.obstacle else "")
            )

    def _time_left(self, first: int, left: int) -> str:
        done, seconds = first - left, time.monotonic() - self._begun
        return f", about {left * seconds / done:.0f} s" if left > 0 and done > 0 else ""

    def _tell_end(self, place: Place, owner: int, target: int, pause_ms: int | None) -> bool:
        report: dict[str, Any] = {"topic": place[0], "partition": place[1], "owner": owner, "pause_ms": pause_ms}
        paused = "" if pause_ms is None else f"; producers waited {pause_ms} ms"
        if self._json:
            print_json(report)
        elif owner == target:
            print_line(f"{place[0]}-{place[1]}: owned by broker {owner}{paused}")
        else:
            print_line(f"{place[0]}-{place[1]}: not moved, broker {owner} owns it{paused}; see its log")
        return owner == target
