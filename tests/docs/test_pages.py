"""Every shell, Python and TOML block of the pages runs as it is written there, in the order of its page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.docs.before import BEFORE, ENDS, PREAMBLES, Key
from tests.docs.machine import Machine
from tests.docs.pages import PYTHON, READ, RUN, TOML, Block, blocks_of, pages
from tests.tiers import IS_LONG
from tools import kafka_jars
from tools.servers.redis_servers import valkey

pytestmark = pytest.mark.timeout(600 if IS_LONG else 240)

MISSING: Final[Mapping[Key, Callable[[], str | None]]] = {
    ("docs/CONFIG.md", "kafka-configs.sh"): kafka_jars.missing_tool,
    ("docs/USING.md", "kafka-configs.sh"): kafka_jars.missing_tool,
    ("docs/rooms/native.md", "make native"): lambda: (
        None if find_spec("headrace_native") else "make native was not run"
    ),
}
"""Blocks that run where the machine has what they need: why it has not, or None."""

BLOCKS: Final = {page: list(blocks_of(page)) for page in pages()}
TYPED: Final = [page for page, blocks in BLOCKS.items() if any(each.language in RUN for each in blocks)]


def test_each_block_says_its_language() -> None:
    others = [block for blocks in BLOCKS.values() for block in blocks if block.language not in (*RUN, *READ)]
    assert [f"{block.page}:{block.line}" for block in others] == []


def test_each_entry_of_the_lists_is_of_one_block() -> None:
    for key in (*MISSING, *BEFORE, *ENDS, *PREAMBLES):
        assert len([block for block in BLOCKS[key[0]] if is_of(block, key)]) == 1, key


@pytest.mark.parametrize("page", TYPED)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    left_out = [key for key, reason in MISSING.items() if reason() is not None]
    blocks = [block for block in BLOCKS[page] if block.language in RUN and not entry_of(block, left_out)]
    for block in blocks:
        if block.language == PYTHON:
            compile(block.text, page, "exec")
    if not IS_LONG:
        blocks = [block for block in blocks if not block.is_of_spark]
    if page == "docs/REDIS.md" and valkey().missing:
        pytest.skip(valkey().missing)
    with Machine(tmp_path) as machine:
        for block in blocks:
            run(machine, block)


def run(machine: Machine, block: Block) -> None:
    for key in entry_of(block, BEFORE):
        BEFORE[key](machine)
    preamble = "".join(machine.translated(PREAMBLES[key]) for key in entry_of(block, PREAMBLES))
    if block.language == TOML and not IS_LONG:
        preamble = "--dry-run"
    ends = [ENDS[key] for key in entry_of(block, ENDS)]
    told = machine.run_lines(block, ends[0]) if ends else machine.run(block, before=preamble)
    assert "Traceback" not in told, told


def entry_of(block: Block, keys: Iterable[Key]) -> Sequence[Key]:
    return [key for key in keys if is_of(block, key)]


def is_of(block: Block, key: Key) -> bool:
    return (block.page, True) == (key[0], block.text.startswith(key[1]))
