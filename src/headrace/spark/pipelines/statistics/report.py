"""Reports statistics: lines, JSON, and an HTML page with pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.spark.pipelines.charts import draw_over_time, drawn, over_time, size_axis
from headrace.spark.pipelines.meter import Meter, size_text
from headrace.spark.pipelines.pages import count_text, page_of
from headrace.spark.pipelines.spec import Statistics
from headrace.spark.pipelines.statistics.surveying import Survey, TopicCounts, document, key_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    text = f"{found.name}: {len(found.topics)} topics, {records:,} records in {seconds:.1f} s"
    meter.say("result", text, topics=len(found.topics), records=records, seconds=seconds)
    if spec.json is not None:
        Path(spec.json).write_text(json.dumps(written, indent=1) + "\n")
    if spec.html is not None:
        Path(spec.html).write_text(page(found))


def line(topic: TopicCounts) -> str:
    top = ", ".join(f"{key_text(key)} {count:,}" for key, count, _ in topic.top[:3]) or "none"
    return (
        f"{topic.name}: {topic.records:,} records, {size_text(topic.bytes)}, {size_text(topic.bytes_per_day)} a day, "
        f"{topic.keys:,} keys (most: {top}), skew {topic.skew:.2f}"
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
    with_hours = [topic.name for topic in found.topics if topic.hours][:TOPICS_DRAWN_MAX]
    return page_of(
        "statistics.html",
        title=f"Statistics {found.name}",
        begun_ms=found.begun_ms,
        ended_ms=found.ended_ms,
        topics=[_shown(topic, draws=topic.name in with_hours) for topic in found.topics],
    )


def _shown(topic: TopicCounts, *, draws: bool) -> tuple[Any, ...]:
    """Return what the template shows of a topic: at the end its picture."""
    forecast = ", ".join(f"{size_text(size)} in {days} days" for days, size in topic.forecast.items())
    partitions = [
        (
            at,
            each.start,
            each.end,
            "-" if each.lag is None else count_text(each.lag),
            count_text(each.records),
            size_text(each.bytes),
        )
        for at, each in sorted(topic.partitions.items())
    ]
    groups = sorted(topic.groups.items(), key=lambda item: (-item[1], item[0]))
    return (
        topic.name,
        line(topic),
        f"Where nothing is deleted and the rate stays: {forecast}. {retained(topic)}",
        partitions,
        [(group, count_text(left)) for group, left in groups],
        [(key_text(key), count_text(count), size_text(size)) for key, count, size in topic.top],
        _picture(topic) if draws else None,
    )


def _picture(topic: TopicCounts) -> tuple[str, str]:
    """Return its title and its data."""
    values = over_time({hour: size for hour, (_, size) in topic.hours.items()}, "h")
    title = f"{topic.name}: size of new records by {values.unit}"

    def draw(axes: Axes) -> None:
        draw_over_time(axes, values)
        size_axis(axes.yaxis)

    return title, drawn(title, draw)
