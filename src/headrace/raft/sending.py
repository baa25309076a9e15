"""A leader's messages to each member, as the member's progress allows.

Promises:
- Entries follow the last one that both logs are believed to share, in windows bounded by count and bytes.
- A member that needs entries no longer in the log gets the newest snapshot, one chunk at a time.
"""

from __future__ import annotations

from headrace.raft.events import ReadSnapshot, SnapshotRead
from headrace.raft.membership import Peer
from headrace.raft.messages import AppendRequest, Entry, SnapshotAnswer, SnapshotChunk
from headrace.raft.progress import Mode, Progress, Window
from headrace.raft.state import State


class Sender:
    """Invariant: there is progress for each member except this one."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.progress: dict[Peer, Progress] = {}

    def follow_membership(self) -> None:
        """The membership has changed. A new member is probed from the end of the log on."""
        others = self._state.membership.members - {self._state.me}
        settings = self._state.settings
        for gone in self.progress.keys() - others:
            del self.progress[gone]
        for new in sorted(others - self.progress.keys()):
            window = Window(settings.window_messages_max, settings.window_bytes_max)
            self.progress[new] = Progress(next_index=self._state.log.last_index + 1, window=window)

    def send_to_all(self, *, even_empty: bool = False) -> None:
        for peer in self.progress:
            self.send(peer, even_empty=even_empty)

    def send(self, peer: Peer, *, even_empty: bool = False) -> None:
        """Send the member the entries that it lacks, as far as its progress allows. `even_empty`: at least the commit
        index."""
        progress, log = self.progress[peer], self._state.log
        if progress.mode is Mode.SNAPSHOT or (progress.mode is Mode.PROBE and progress.probed):
            return
        if progress.next_index <= log.base_index:
            progress.become_snapshot(log.snapshot)
            self._ask_for_chunk(peer)
        elif progress.mode is Mode.PROBE:
            progress.probed = True
            self._send_entries(peer, progress, log.read(progress.next_index, self._state.settings.append_bytes_max))
        else:
            self._fill_window(peer, progress, even_empty=even_empty)

    def _fill_window(self, peer: Peer, progress: Progress, *, even_empty: bool) -> None:
        log, sent = self._state.log, False
        while progress.next_index <= log.last_index and not progress.window.is_full:
            entries = log.read(progress.next_index, self._state.settings.append_bytes_max)
            self._send_entries(peer, progress, entries)
            progress.next_index = entries[-1].index + 1
            progress.window.add(entries[-1].index, sum(len(entry.data) for entry in entries))
            sent = True
        if even_empty and not sent:
            self._send_entries(peer, progress, ())

    def _send_entries(self, peer: Peer, progress: Progress, entries: tuple[Entry, ...]) -> None:
        state = self._state
        previous_term = state.log.term_at(progress.next_index - 1)
        assert previous_term is not None, "the log goes back to what the member has"
        state.outbox.send(
            AppendRequest(
                term=state.term,
                source=state.me,
                target=peer,
                previous_index=progress.next_index - 1,
                previous_term=previous_term,
                entries=entries,
                commit_index=state.log.commit_index,
            )
        )

    def on_snapshot_read(self, event: SnapshotRead) -> None:
        progress, state = self.progress.get(event.target), self._state
        sending = None if progress is None else progress.sending
        if progress is None or sending is None or (sending.mark.index, sending.offset) != (event.index, event.offset):
            return
        if event.data is None:
            if state.log.snapshot.index > sending.mark.index:  # otherwise the chunk is read again after some heartbeats
                progress.become_snapshot(state.log.snapshot)
                self._ask_for_chunk(event.target)
            return
        state.outbox.send(
            SnapshotChunk(
                term=state.term,
                source=state.me,
                target=event.target,
                mark=sending.mark,
                offset=event.offset,
                data=event.data,
                last=event.last,
            )
        )

    def on_snapshot_answer(self, message: SnapshotAnswer) -> None:
        """Only the answer to the awaited chunk counts, because a chunk is answered each time it arrives."""
        sending = self.progress[message.source].sending
        if sending is None or (message.index, message.offset) != (sending.mark.index, sending.offset):
            return
        if message.next_offset != sending.offset:
            sending.offset, sending.silent_rounds = message.next_offset, 0
            self._ask_for_chunk(message.source)

    def on_silent_round(self, peer: Peer) -> None:
        """The member answers heartbeats. If it still does not answer the chunk, the chunk was lost."""
        sending = self.progress[peer].sending
        assert sending is not None
        sending.silent_rounds += 1
        if sending.silent_rounds >= self._state.settings.snapshot_patience_rounds:
            sending.silent_rounds = 0
            self._ask_for_chunk(peer)

    def _ask_for_chunk(self, peer: Peer) -> None:
        sending = self.progress[peer].sending
        assert sending is not None
        self._state.reading.append(ReadSnapshot(peer, sending.mark.index, sending.offset))
