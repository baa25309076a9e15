"""An audit's report: a table, JSON, and one HTML page that includes its pictures."""

from __future__ import annotations

import html
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

from headrace.spark.pipelines.audit.auditing import Audited, Report
from headrace.spark.pipelines.meter import Meter, size_text
from headrace.spark.pipelines.pages import Picture, picture, time_text, whole_page
from headrace.spark.pipelines.spec import Audit

HEADINGS: Final = ("TOPIC", "PARTITION", "START", "END", "SEGMENTS", "RECORDS", "BYTES", "BROKERS", "PROBLEMS")
DAYS_DRAWN_MAX: Final = 400
"""Maximum bars of a plot by days. Beyond it, months are drawn."""


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
    content = f"{where}: offsets {each.start} to {each.end - 1}, {each.segments} segments, {each.records} records"
    return f"{content}, {size_text(each.bytes)}" + (f": {each.wrong} problems" if each.problems else "")


def page(report: Report) -> str:
    good = report.holds
    rows = "".join(_row(each) for each in report.partitions)
    heads = "".join(f"<th>{heading.lower()}</th>" for heading in HEADINGS)
    problems = "".join(f"<li>{html.escape(text)}</li>" for each in report.partitions for text in each.problems)
    verdict = "All is as its catalogs say." if good else "Something does not hold."
    body = (
        f"<p>{time_text(report.begun_ms)} to {time_text(report.ended_ms)} (UTC)</p>"
        f"<p class='{'good' if good else 'bad'}'><b>{verdict}</b></p><table><tr>{heads}</tr>{rows}</table>"
        + (f"<h2>Problems</h2><ul>{problems}</ul>" if problems else "")
    )
    return whole_page(f"Audit {report.name}", body, drawn(report))


def _row(each: Audited) -> str:
    brokers = "agree" if each.compared and not each.problems else "asked" if each.compared else "not asked"
    cells = (each.topic, each.partition, each.start, each.end, each.segments, each.records, each.bytes, brokers)
    content = "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells)
    return f"<tr>{content}<td class='{'bad' if each.problems else 'good'}'>{each.wrong}</td></tr>"


def drawn(report: Report) -> list[Picture]:
    """Pictures: bytes of partitions, records by day, codecs."""
    return [
        picture("Bytes of each partition", lambda axes: _draw_bytes(report, axes)),
        picture("Records by the day of their segments' last record", lambda axes: _draw_days(report, axes)),
        picture("Batches by codec", lambda axes: _draw_codecs(report, axes)),
    ]


def _draw_bytes(report: Report, axes: Any) -> None:
    names = [f"{each.topic}-{each.partition}" for each in report.partitions]
    colours = ["#cf222e" if each.problems else "#9ecae1" for each in report.partitions]
    axes.bar(range(len(names)), [each.bytes for each in report.partitions], color=colours)
    if len(names) <= 30:
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_ylabel("bytes")


def _draw_days(report: Report, axes: Any) -> None:
    found: dict[str, int] = defaultdict(int)
    times = [(one.last_ms, one.records) for each in report.partitions for one in each.findings.values() if one.whole]
    for width in (10, 7):
        found = defaultdict(int)
        for last_ms, records in times:
            found[time_text(last_ms)[:width]] += records
        if len(found) <= DAYS_DRAWN_MAX:
            break
    axes.bar(range(len(found)), [found[day] for day in sorted(found)], color="#9ecae1")
    if len(found) <= 12:
        axes.set_xticks(range(len(found)), sorted(found), rotation=30, ha="right")
    axes.set_ylabel("records")


def _draw_codecs(report: Report, axes: Any) -> None:
    packed: Counter[str] = Counter()
    for each in report.partitions:
        for one in each.findings.values():
            packed.update(one.packed)
    names = sorted(packed)
    axes.barh(range(len(names)), [packed[name] for name in names], color="#9ecae1")
    axes.set_yticks(range(len(names)), names)
