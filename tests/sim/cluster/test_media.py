"""The judge's view of a log on a disk equals what its broker finds there."""

from __future__ import annotations

from headrace.sim.cluster.records.media import SUFFIX, Media, directory_of, parse
from headrace.sim.nodes import FileNode
from headrace.storage.log.journal.journal import JournalSettings
from tests.sim.cluster.test_found_by_records import NAME, RecordsScript

DIRECTORY = f"{NAME}-0"
JOURNAL = JournalSettings(file_bytes=1 << 20, files_max=3, after_rounds=1)
COUNT = 8


def test_what_only_the_journal_has_durably_is_a_part_of_the_log() -> None:
    script = RecordsScript(JOURNAL)

    def in_own_files(node: int) -> int:
        """Batches that the log's own files hold durably."""
        directory = directory_of(script.hosts[node].disk, DIRECTORY)
        assert directory is not None
        files = [file for name, file in directory.durable.items() if name.endswith(SUFFIX)]
        return sum(len(parse(bytes(file.durable))) for file in files if isinstance(file, FileNode))

    async def story() -> None:
        await script.begin()
        leader = script.partition().leader
        for number in range(COUNT):
            assert await script.produce(leader, b"%d" % number, acks=-1) == 0
        assert in_own_files(leader) < COUNT
        held = Media().log(script.hosts[leader].disk, DIRECTORY)
        assert [(batch.base, batch.end) for batch in held] == [(number, number + 1) for number in range(COUNT)]
        for host in script.hosts.values():
            host.power_cut()
        for host in script.hosts.values():
            host.boot()
        await script.served(*script.hosts)
        assert in_own_files(leader) == COUNT
        assert Media().log(script.hosts[leader].disk, DIRECTORY) == held

    script.run(story)
