"""Reports statistics: lines, JSON, and an HTML page with pictures."""

from __future__ import annotations

import html
import json
from functools import partial
from pathlib import Path
from typing import Any, Final

from headrace.spark.pipelines.meter import Meter, size_text
from headrace.spark.pipelines.pages import Picture, picture, table_of, time_text, whole_page
from headrace.spark.pipelines.spec import Statistics
from headrace.spark.pipelines.statistics.surveying import HOUR_MS, Survey, TopicCounts, document, key_text

TOPICS_DRAWN_MAX: Final = 20
"""Maximum topics drawn on one page. The tables have all of them."""


def tell(found: Survey, spec: Statistics, meter: Meter) -> None:
    """Report to the meter, and write the files that the pipeline names."""
    meter.close()
    written = document(found)
    for topic, each in zip(found.topics, written["topics"], strict=True):
        meter.say("topic", line(topic), **each)
    seconds = (found.ended_ms - found.begun_ms) / 1000
    records = sum(each.records for each in found.topics)
    text = f"{found.name}: {len(found.topics)} topics, {records} records in {seconds:.1f} s"
    meter.say("result", text, topics=len(found.topics), records=records, seconds=seconds)
    if spec.json is not None:
        Path(spec.json).write_text(json.dumps(written, indent=1) + "\n")
    if spec.html is not None:
        Path(spec.html).write_text(page(found))


def line(topic: TopicCounts) -> str:
    top = ", ".join(f"{key_text(key)} {count}" for key, count, _ in topic.top[:3]) or "none"
    return (
        f"{topic.name}: {topic.records} records, {size_text(topic.bytes)}, {size_text(topic.bytes_per_day)} a day, "
        f"{topic.keys} keys (most: {top}), skew {topic.skew:.2f}"
    )


def retained(topic: TopicCounts) -> str:
    """A sentence on the effect of the topic's retention."""
    if topic.retention is None:
        return ""
    if topic.settles_at is None:
        return "Retention deletes nothing."
    days = topic.deletes_in_days
    when = "" if days is None else " from now on" if days <= 0 else f" from {days:.1f} days from now on"
    return f"Retention deletes{when}, and keeps it at {size_text(topic.settles_at)} as stored."


def page(found: Survey) -> str:
    body = f"<p>{time_text(found.begun_ms)} to {time_text(found.ended_ms)} (UTC)</p>"
    for topic in found.topics:
        body += f"<h2>{html.escape(topic.name)}</h2><p>{html.escape(line(topic))}</p>"
        forecast = ", ".join(f"{size_text(size)} in {days} days" for days, size in topic.forecast.items())
        body += f"<p>Where nothing is deleted and the rate stays: {forecast}. {retained(topic)}</p>"
        rows = [
            (at, each.start, each.end, "-" if each.lag is None else each.lag, each.records, each.bytes)
            for at, each in sorted(topic.partitions.items())
        ]
        body += table_of(("partition", "start", "end", "not durable yet", "records", "bytes"), rows)
        lags = sorted(topic.groups.items(), key=lambda item: (-item[1], item[0]))
        body += table_of(("consumer group", "offsets to read"), lags) if lags else ""
        keys = [(key_text(key), count, size) for key, count, size in topic.top]
        body += table_of(("key", "records", "bytes"), keys) if keys else ""
    return whole_page(f"Statistics {found.name}", body, drawn(found))


def drawn(found: Survey) -> list[Picture]:
    with_hours = [topic for topic in found.topics if topic.hours]
    return [picture(f"{each.name}: bytes by hour", partial(_draw, each)) for each in with_hours[:TOPICS_DRAWN_MAX]]


def _draw(topic: TopicCounts, axes: Any) -> None:
    first, last = min(topic.hours), max(topic.hours)
    axes.plot([*topic.hours], [size for _, size in topic.hours.values()], drawstyle="steps-mid", color="#3182bd")
    if first < last:
        axes.set_xticks([first, last], [time_text(each * HOUR_MS)[:13] + "h" for each in (first, last)])
    axes.set_ylabel("bytes")
