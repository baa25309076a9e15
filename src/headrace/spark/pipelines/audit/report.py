"""An audit's report: a table, JSON, and one HTML page that includes its pictures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.spark.pipelines.audit.auditing import Audited, Report
from headrace.spark.pipelines.charts import (
    BLUE,
    RED,
    OverTime,
    count_axis,
    draw_over_time,
    drawn,
    over_time,
    size_axis,
)
from headrace.spark.pipelines.meter import Meter, size_text
from headrace.spark.pipelines.pages import page_of
from headrace.spark.pipelines.spec import Audit
from headrace.wire.compression import Compression

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED_MAX: Final = 30
"""Maximum partitions that have their name in the picture. The table has all of them."""


def tell(report: Report, spec: Audit, meter: Meter) -> None:
    """Report to the meter, and write the files that the pipeline names."""
    meter.close()
    for each in report.partitions:
        meter.say("partition", _line(each), **summary(each))
        for problem in each.problems:
            meter.say("problem", f"  {problem}", topic=each.topic, partition=each.partition, problem=problem)
    wrong = sum(each.wrong for each in report.partitions)
    total = sum(each.bytes for each in report.partitions)
    if report.dry:
        verdict = "nothing was read"
    else:
        verdict = "all is as its catalogs say" if report.holds else f"{wrong} things do not hold"
    seconds = (report.ended_ms - report.begun_ms) / 1000
    text = f"{report.name}: {len(report.partitions)} partitions, {size_text(total)} in {seconds:.1f} s: {verdict}"
    meter.say("result", text, ok=report.holds, problems=wrong, bytes=total, seconds=seconds)
    if spec.json is not None and not report.dry:
        Path(spec.json).write_text(json.dumps(document(report), indent=1) + "\n")
    if spec.html is not None and not report.dry:
        Path(spec.html).write_text(page(report))


def summary(each: Audited) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "start": each.start,
        "end": each.end,
        "segments": each.segments,
        "records": each.records,
        "bytes": each.bytes,
        "head": each.head,
        "compared_with_brokers": each.compared,
        "problems": each.problems,
    }


def document(report: Report) -> dict[str, Any]:
    return {
        "name": report.name,
        "ok": report.holds,
        "begun_ms": report.begun_ms,
        "ended_ms": report.ended_ms,
        "partitions": [summary(each) for each in report.partitions],
    }


def _line(each: Audited) -> str:
    where = f"{each.topic}-{each.partition}"
    if each.segments == 0 and not each.problems:
        return f"{where}: no durable history"
    content = f"{where}: offsets {each.start} to {each.end - 1}, {each.segments:,} segments, {each.records:,} records"
    return f"{content}, {size_text(each.bytes)}" + (f": {each.wrong} problems" if each.problems else "")


def page(report: Report) -> str:
    """Each picture is beside the table of its values."""
    times, packed = records_over_time(report), batches_by_codec(report)
    return page_of(
        "audit.html",
        title=f"Audit {report.name}",
        begun_ms=report.begun_ms,
        ended_ms=report.ended_ms,
        report=report,
        sizes=drawn("Size of each partition", lambda axes: _draw_sizes(report, axes)),
        times=times,
        days=drawn(f"Records by {times.unit}", lambda axes: _draw_times(times, axes)),
        packed=[(name, f"{batches:,}") for name, batches in packed.items()],
        codecs=drawn("Batches by codec", lambda axes: _draw_codecs(packed, axes)),
    )


def records_over_time(report: Report) -> OverTime:
    """The records of all segments that could be read, by day at least."""
    days: Counter[int] = Counter()
    for each in report.partitions:
        for finding in each.findings.values():
            days.update(finding.days)
    records = sum(each.records for each in report.partitions)
    found = over_time(days, "D")
    return found._replace(left_out=records - int(found.sums.sum()))


def batches_by_codec(report: Report) -> dict[str, int]:
    packed: Counter[str] = Counter()
    for each in report.partitions:
        for finding in each.findings.values():
            packed.update(finding.packed)
    return dict(sorted(packed.items()))


def _draw_sizes(report: Report, axes: Axes) -> None:
    names = [f"{each.topic}-{each.partition}" for each in report.partitions]
    colours = [RED if each.problems else BLUE for each in report.partitions]
    axes.bar(range(len(names)), [each.bytes for each in report.partitions], color=colours)
    axes.set_xticks([])
    if len(names) <= NAMED_MAX:
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    size_axis(axes.yaxis)


def _draw_times(times: OverTime, axes: Axes) -> None:
    draw_over_time(axes, times)
    count_axis(axes.yaxis)


def _draw_codecs(packed: Mapping[str, int], axes: Axes) -> None:
    axes.barh([*packed], [*packed.values()], color=BLUE)
    axes.set_ylim(-0.6, max(len(packed), len(Compression)) - 0.4)  # one bar alone is no wall
    count_axis(axes.xaxis)
