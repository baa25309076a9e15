"""``python -m headrace.spark.pipelines FILE.toml`` runs one pipeline. `headrace pipeline run` starts it.

Exit codes: 0 for success, 1 for a failure or an audit that found something wrong, 2 for a wrong file, 130 for an
interruption.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from threading import Event
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError, UsageError
from headrace.spark.pipelines.meter import Meter, meter, size_text
from headrace.spark.pipelines.spec import Audit, Compact, Materialise, Replay, Spec, Statistics, load
from headrace.spark.results import reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.pipelines.tables.materialising import Planned


def main(arguments: Sequence[str]) -> int:
    parsed = parse_arguments(arguments)
    telling = meter(as_json=parsed.json)
    try:
        return run(load(parsed.file), parsed, telling)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get("HEADRACE_DEBUG"):
            raise
        text = str(error) if isinstance(error, HeadraceError) else reason(error)
        telling.close()
        sys.stderr.write(f"headrace: {' '.join(text.split())}\n")
        return 2 if isinstance(error, UsageError) else 1
    finally:
        telling.close()


def run(spec: Spec, arguments: argparse.Namespace, telling: Meter) -> int:
    if isinstance(spec, Replay):
        return run_replay(spec, arguments, telling)
    if isinstance(spec, Compact):
        return run_compact(spec, arguments, telling)
    if not isinstance(spec, Materialise):
        return run_report(spec, arguments, telling)
    if arguments.dry_run:
        from headrace.spark.pipelines.tables.materialising import planned

        tell_ranges(spec, planned(spec, backfill=arguments.backfill), telling)
        return 0
    return run_materialise(spec, arguments, telling)


def run_report(spec: Audit | Statistics, arguments: argparse.Namespace, telling: Meter) -> int:
    refuse_backfill(arguments)
    if spec.html is not None and None in map(find_spec, ("jinja2", "matplotlib")):
        raise UsageError(
            "Key html of section [report] needs Jinja and matplotlib: pip install 'headrace[reports]', or leave it out."
        )
    if isinstance(spec, Statistics):
        from headrace.spark.pipelines.statistics.report import tell as tell_survey
        from headrace.spark.pipelines.statistics.surveying import survey

        found = survey(lambda: session_of(spec), spec, dry_run=arguments.dry_run, meter=telling)
        if not arguments.dry_run:
            tell_survey(found, spec, telling)
        return 0
    from headrace.spark.pipelines.audit.auditing import audit
    from headrace.spark.pipelines.audit.report import tell

    report = audit(lambda: session_of(spec), spec, dry_run=arguments.dry_run, meter=telling)
    tell(report, spec, telling)
    return 0 if report.holds else 1


def run_compact(spec: Compact, arguments: argparse.Namespace, telling: Meter) -> int:
    from headrace.spark.pipelines.merging import compact

    refuse_backfill(arguments)
    topics = compact(lambda: session_of(spec), spec, dry_run=arguments.dry_run, meter=telling)
    telling.close()
    for topic in topics:
        telling.say("topic", topic.sentence(dry_run=arguments.dry_run), **topic.facts)
    return 0 if all(topic.holds for topic in topics) else 1


def refuse_backfill(arguments: argparse.Namespace) -> None:
    if arguments.backfill:
        raise UsageError("--backfill is for pipelines that materialise: leave it out.")


def run_replay(spec: Replay, arguments: argparse.Namespace, telling: Meter) -> int:
    from headrace.spark.pipelines.replays.replaying import planned_replay, replay

    refuse_backfill(arguments)
    if arguments.dry_run:
        tell_ranges(spec, planned_replay(spec), telling)
        return 0
    done = replay(lambda: session_of(spec), spec, meter=telling, stop=stopped_by_sigterm())
    telling.close()
    text = (
        f"{spec.name}: {done.records:,} records in {size_text(done.bytes)} of batches, by {done.portions:,} portions; "
        f"{done.repeated:,} were there already"
        if done.portions
        else f"{spec.name}: there is nothing new"
    )
    telling.say("result", text, records=done.records, bytes=done.bytes, portions=done.portions, repeated=done.repeated)
    return 0


def stopped_by_sigterm() -> Event:
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return stop


def run_materialise(spec: Materialise, arguments: argparse.Namespace, telling: Meter) -> int:
    from headrace.spark.pipelines.tables.materialising import materialise

    stop = stopped_by_sigterm()
    outcome = materialise(lambda: session_of(spec), spec, backfill=arguments.backfill, meter=telling, stop=stop)
    telling.close()
    text = (
        f"{spec.name}: {outcome.records:,} records in {outcome.files:,} files, {size_text(outcome.bytes)}, by "
        f"{outcome.commits:,} commits; the table is at version {outcome.version}"
        if outcome.commits
        else f"{spec.name}: there is nothing new"
    )
    telling.say(
        "result", text, records=outcome.records, files=outcome.files, bytes=outcome.bytes, commits=outcome.commits
    )
    return 0


def tell_ranges(spec: Materialise | Replay, ranges: Sequence[Planned], telling: Meter) -> None:
    for each in ranges:
        text = f"{each.topic}-{each.partition}: offsets {each.start} to {each.end - 1}, about {size_text(each.bytes)}"
        telling.say("plan", text, **each._asdict())
    total = sum(each.bytes for each in ranges)
    count = sum(each.end - each.start for each in ranges)
    limit = spec.source.trigger_bytes_max
    commits = -(-total // limit) if limit is not None else None
    text = f"{spec.name}: {count:,} offsets, about {size_text(total)}"
    what = "portions" if isinstance(spec, Replay) else "commits"
    text += f", in about {commits} {what}" if commits is not None else ""
    telling.say("total", f"{text}; nothing was written", offsets=count, bytes=total, commits=commits)


def session_of(spec: Spec) -> SparkSession:
    from headrace.spark.session import SHORT_JOB, make_way, spark_session

    quick = {"spark.sql.catalogImplementation": SHORT_JOB["spark.sql.catalogImplementation"]}
    settings = {**quick, **spec.spark.settings}
    quiet = not os.environ.get("HEADRACE_DEBUG")
    session = spark_session(f"headrace {spec.name}", master=spec.spark.master, settings=settings, quiet=quiet)
    if not spec.spark.master.startswith("sc://"):
        session.sparkContext.setLogLevel("FATAL" if quiet else "ERROR")
    if spec.spark.master.startswith("local"):
        make_way(session, spec.spark.nice, spare_processors=spec.spark.spare_processors)
    return session


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="headrace pipeline run", description="Run one pipeline.")
    parser.add_argument("file", metavar="FILE.toml")
    parser.add_argument("--dry-run", action="store_true", help="say what would be read, with bytes, and stop")
    parser.add_argument("--backfill", action="store_true", help="also what lies before the table's beginning")
    parser.add_argument("--json", action="store_true", help="JSON, one object a line, on standard output")
    return parser.parse_args(list(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
