"""Kafka Streams with `exactly_once_v2`: a word count and a join, while instances and brokers die.

The application writes an update for each word. So the counts of a word are 1, 2, 3 and so on, each once, where each
input was counted exactly once.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.interop import java_project
from tests.interop.frameworks.support import topics
from tests.interop.frameworks.support.brokers import Brokers
from tests.interop.frameworks.support.programs import Program
from tests.interop.frameworks.support.topics import Reader
from tests.tiers import long_only

PART: Final = 300
"""Lines that are written before a kill, and after."""
WORDS: Final = 2
"""Of each line."""

pytestmark = pytest.mark.skipif(not java_project.IS_POSSIBLE, reason=java_project.REASON)


class Application:
    """Two instances, their topics, and a reader of each that they write."""

    def __init__(self, brokers: Brokers, directory: Path, name: str) -> None:
        self._bootstrap, self._name = brokers.bootstrap, name
        self._lines = 0
        self._states = [directory / f"state-{n}" for n in range(2)]
        topics.create(self._bootstrap, *(f"{name}-{each}" for each in ("lines", "marks", "counts", "joined")))
        program = ("headrace.frameworks.WordCounts", self._bootstrap, name)
        self.instances = [
            Program("kafka", (*program, str(state)), directory / f"instance-{n}.log")
            for n, state in enumerate(self._states)
        ]
        self._counts, self._joined = (Reader(self._bootstrap, f"{name}-{each}") for each in ("counts", "joined"))

    def __enter__(self) -> Application:
        with ExitStack() as ends:
            for reader in (self._counts, self._joined):
                ends.enter_context(reader)
            for instance in self.instances:
                ends.enter_context(instance).begin()
            for instance in self.instances:
                instance.is_up()
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def write(self) -> None:
        """PART lines more, and a mark for each."""
        numbers = range(self._lines, self._lines + PART)
        topics.write(self._bootstrap, f"{self._name}-lines", ((str(n), line(n)) for n in numbers))
        topics.write(self._bootstrap, f"{self._name}-marks", ((str(n), f"m{n}") for n in numbers))
        self._lines += PART

    def has_done(self, lines: int) -> None:
        """Wait until the words of so many lines are counted, and so many are joined."""
        self._counts.until(lines * WORDS, self._story)
        self._joined.until(lines, self._story)

    def has_begun(self) -> None:
        """Wait until some of what was written last is counted."""
        self._counts.until((self._lines - PART) * WORDS + 1, self._story)

    def lose_state(self, instance: int) -> None:
        """Its stores have to come from the changelogs, and it has another name for its transactions."""
        shutil.rmtree(self._states[instance])

    def end(self) -> None:
        """All is done exactly once."""
        self.has_done(self._lines)
        for instance in self.instances:
            instance.end()
        words = Counter(word for n in range(self._lines) for word in line(n).split())
        found: dict[str, list[int]] = {}
        for word, count in self._counts.to_the_end():
            found.setdefault(word, []).append(int(count))
        assert found == {word: list(range(1, count + 1)) for word, count in words.items()}
        joined = sorted((int(key), value) for key, value in self._joined.to_the_end())
        assert joined == [(n, f"{line(n)}/m{n}") for n in range(self._lines)]

    def _story(self) -> str:
        return "\n".join(each.story() for each in self.instances)


def line(number: int) -> str:
    """A line of two words, one of seven and one of eleven."""
    return f"a{number % 7} b{number % 11}"


@pytest.fixture
def application(brokers: Brokers, tmp_path: Path) -> Iterator[Application]:
    with Application(brokers, tmp_path, f"app-{uuid.uuid4().hex[:8]}") as made:
        yield made


@pytest.mark.timeout(600)  # Maven may have to fetch 80 MB
@long_only
def test_an_instance_is_killed_and_comes_back(application: Application) -> None:
    application.write()
    application.write()
    application.has_begun()
    application.instances[0].kill()
    application.instances[0].start()
    application.end()


@long_only
def test_the_other_instance_goes_on_alone(application: Application) -> None:
    lines = 0
    for victim in (0, 1):
        application.write()
        application.write()
        application.has_begun()
        lines += 2 * PART
        application.instances[victim].kill()
        application.has_done(lines)
        application.lose_state(victim)
        application.instances[victim].start()
    application.end()


@long_only
def test_an_instance_that_was_taken_for_dead_does_nothing_twice(application: Application) -> None:
    lines = 0
    for victim in (0, 1):
        application.write()
        application.write()
        application.has_begun()
        lines += 2 * PART
        application.instances[victim].pause()
        application.has_done(lines)
        application.instances[victim].resume()
    application.write()
    application.end()


@long_only
def test_brokers_and_instances_are_killed(application: Application, brokers: Brokers) -> None:
    for broker in (1, 2, 3):
        application.write()
        application.has_begun()
        brokers.replace(broker)
        application.write()
        application.instances[broker % 2].kill()
        brokers.replace(broker % 3 + 1)
        application.instances[broker % 2].start()
    application.end()
