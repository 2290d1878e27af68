"""How does a save go, from a rank's state to a committed checkpoint?

plan: ranks compare views and the chair settles what differs. write: each rank writes its files.
commit: the chair sees every file and puts the manifest in its place. Whoever fails in between,
nothing is committed and everyone hears why.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from shardkeep.errors import ConflictError, RankFailedError, ShardkeepError
from shardkeep.layouts import Layout
from shardkeep.manifest import (
    FileRecord,
    FileTable,
    Manifest,
    decode_manifest,
    encode_manifest,
    file_name,
    report_name,
)
from shardkeep.plan.grids import GridTable, tensor_records
from shardkeep.plan.settle import SaveView
from shardkeep.ranks.hosts import host_key, host_names
from shardkeep.state.keeping import KeptState
from shardkeep.storage import OutcomeUnknownError, Storage
from shardkeep.transfer.agreement import Agreement
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.commit import (
    MANIFEST,
    commit,
    committed_manifest,
    committed_nbytes,
    remove_files,
    require_visible,
    under_way,
)
from shardkeep.transfer.council import Council
from shardkeep.transfer.hosts import Hosts
from shardkeep.transfer.planning import Planning, divisions_of, outgoing_of
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.replicas import (
    CheckReplicas,
    Holders,
    combine,
    digest_replicas,
    divergence_error,
    find_divergence,
)
from shardkeep.transfer.report import RankTimes, make_report, write_report
from shardkeep.transfer.save_notes import Outcome, Wrote
from shardkeep.transfer.sources import Sums, require_same_sources, sum_sources
from shardkeep.transfer.timings import Timings as Timings
from shardkeep.transfer.write import Job, write_files


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """How to save; the same on all ranks."""

    overwrite: bool
    threads: int
    check_replicas: CheckReplicas
    metadata: Mapping[str, Any]
    meter: Meter
    hosts: Hosts | None = None
    """If each host has a storage of its own: who is on which."""


@dataclass(frozen=True, slots=True)
class SaveOutcome:
    """What one rank did in a save that was committed."""

    location: str
    save_id: str
    files: tuple[FileRecord, ...]
    total_nbytes: int
    """Of the files of all ranks."""
    seconds: Mapping[str, float]

    @property
    def nbytes(self) -> int:
        """Of this rank's own files."""
        return sum(record.nbytes for record in self.files)


def run_save(
    prepare: Callable[[], tuple[KeptState, Storage]],
    council: Council,
    options: SaveOptions,
    timings: Timings,
) -> SaveOutcome:
    """Save and commit; on return every rank knows that the checkpoint stands.

    `prepare` gives what to save and where; if it fails on one rank, all hear it.
    """
    return _Save(prepare, council, options, timings).run()


class _Save:
    """One rank's part in one save. On the chair, also what the chair does."""

    def __init__(
        self,
        prepare: Callable[[], tuple[KeptState, Storage]],
        council: Council,
        options: SaveOptions,
        timings: Timings,
    ) -> None:
        self.prepare = prepare
        self.council = council
        self.options = options
        self.timings = timings
        self.is_chair = council.me == council.chair
        self.phase = "plan"
        self.word = b""
        """What all ranks know of this attempt, and no other has."""
        self.written: tuple[str, list[FileRecord]] | None = None
        self.reported = False
        self.tried_to_commit = False
        self.holding = ExitStack()

    def run(self) -> SaveOutcome:
        with self.holding:
            return self._run()

    def _run(self) -> SaveOutcome:
        try:
            agreement = self._enter("plan", self._agree)
            self.word = agreement.save_id.encode()
            layouts = agreement.layouts(self.view, self.planning.digest)
            records = self._enter("write", lambda: self._write(agreement, layouts))
            outcome = self._enter("commit", lambda: self._finish(agreement, layouts, records))
        except BaseException as error:
            undone = self._is_undone(error)
            self.council.fail(f"save ({self.phase})", error, undone=undone)
            if undone:
                self._remove_own()
            self.council.leave(done=False)
            raise
        self.council.leave(done=True)
        return outcome

    def _is_undone(self, error: BaseException) -> bool:
        """Whether nothing can be committed any more, so that my files may go.

        A rank that has reported its files cannot know: the chair may commit, or may have. Then they
        stay, for a checkpoint that may name them; if none does, prune removes them.
        """
        if isinstance(error, RankFailedError) and error.undone:
            return True
        return not self.tried_to_commit if self.is_chair else not self.reported

    def _enter(self, phase: str, act: Callable[[], Any]) -> Any:
        self.phase = phase
        with self.timings.phase(phase):
            return act()

    def _remove_own(self) -> None:
        if self.written is not None:
            save_id, records = self.written
            remove_files(self.storage, [file_name(save_id, r.rank, r.number) for r in records])

    def _agree(self) -> Agreement:
        with gc_paused():
            self.kept, self.storage = self.prepare()
        kept = self.kept
        self.view = SaveView(kept.tree, kept.entries, tuple(sorted(kept.per_rank)))
        self.planning = Planning(
            self.view, self.council, nbytes=kept.nbytes, threads=self.options.threads
        )
        if self.is_chair:
            self._look_for_checkpoint()
            self._hold(self.planning.save_id)
        where = self.storage.location if self.options.hosts is None else "on each host"
        options = (where, self.options.overwrite, self.options.check_replicas)
        return self.planning.agree(repr(options))

    def _hold(self, save_id: str) -> None:
        """Before others hear the save id and write under it: prune must leave their files alone.

        The chair's lock stands for all ranks. While it lives, the save may be committed, whoever
        of the others is dead; without it, never.
        """
        self.holding.enter_context(under_way(self.storage, save_id))

    def _look_for_checkpoint(self) -> None:
        self.replaced = committed_manifest(self.storage)
        if self.replaced is not None and not self.options.overwrite and not self.options.hosts:
            raise ConflictError(
                f"{self.storage.location} holds a checkpoint already; save to another path, or "
                "pass overwrite=True to replace it"
            )

    def _write(self, agreement: Agreement, layouts: Mapping[str, Layout]) -> list[FileRecord]:
        me = self.council.me
        if self._leads_another_host:
            self._hold(agreement.save_id)
        with gc_paused():
            outgoing = outgoing_of(self.kept.entries, layouts, agreement, self.planning.digest, me)
            chunks = outgoing.chunks(self.kept.memory)
        job = Job(agreement.save_id, me, chunks, self.kept.per_rank, outgoing.tables)
        self.options.meter.expect(sum([table.data_nbytes for table in outgoing.tables.values()]))
        records = write_files(self.storage, job, self.options.meter)
        self.written = agreement.save_id, records
        self.storage.sync()
        return records

    def _finish(
        self, agreement: Agreement, layouts: Mapping[str, Layout], records: list[FileRecord]
    ) -> SaveOutcome:
        shared = self._digest_replicas(layouts)
        wrote = Wrote(
            [(r.number, r.nbytes, r.header_nbytes, r.header_digest) for r in records],
            combine(shared),
            self._sum_sources(agreement),
            self._times(records),
            host_key(),
        )
        self.reported = True
        self.council.report("write", msgspec.json.encode(wrote), word=self.word)
        if self.is_chair:
            outcome = self._chair_commit(agreement)
        else:
            outcome = self._hear_outcome(agreement.save_id)
        if outcome.explain:
            self._explain(outcome.explain, shared)
        if self._leads_another_host:
            self._keep_manifest()
        return SaveOutcome(
            self.storage.location,
            agreement.save_id,
            tuple(records),
            outcome.total_nbytes,
            self.timings.seconds,
        )

    @property
    def _leads_another_host(self) -> bool:
        """Whether this rank acts for a host whose storage the chair does not see."""
        hosts = self.options.hosts
        return hosts is not None and hosts.leads and not self.is_chair

    def _keep_manifest(self) -> None:
        """Beside the files of this host, too. The checkpoint stands, also if this fails."""
        with suppress(ShardkeepError):
            manifest = self.council.hear("manifest", word=self.word)
            self.replaced = committed_manifest(self.storage)
            commit(self.storage, manifest, self.replaced)
            self._remove_replaced()

    def _hear_outcome(self, save_id: str) -> Outcome:
        try:
            return msgspec.json.decode(self.council.hear("write", word=self.word), type=Outcome)
        except RankFailedError as error:
            # The chair may have been done first, and have ended, and the Store with it.
            is_store_gone = list(error.failures) == [self.council.me]
            total = committed_nbytes(self.storage, save_id) if is_store_gone else None
            if total is None:
                raise
            return Outcome(total, [])

    def _digest_replicas(self, layouts: Mapping[str, Layout]) -> dict[Holders, dict[str, int]]:
        if len(self.council.ranks) == 1:
            return {}
        return digest_replicas(
            layouts, self.kept.memory, self.council.me, self.options.check_replicas
        )

    def _times(self, records: Sequence[FileRecord]) -> RankTimes:
        nbytes = sum(record.nbytes for record in records)
        return RankTimes(socket.gethostname(), nbytes, dict(self.timings.seconds))

    def _sum_sources(self, agreement: Agreement) -> Sums:
        return sum_sources(
            agreement,
            self.view,
            agreement.number_of(self.planning.digest),
            self.kept.memory,
            self.council.me,
            self.options.check_replicas,
        )

    def _chair_commit(self, agreement: Agreement) -> Outcome:
        notes = self.council.collect("write", word=self.word)
        start = self.timings.clock()
        wrote = {rank: msgspec.json.decode(note, type=Wrote) for rank, note in notes.items()}
        differ = find_divergence({rank: one.replicas for rank, one in wrote.items()})
        if differ is not None:
            outcome = Outcome(0, list(differ))
            self.council.announce("write", msgspec.json.encode(outcome), word=self.word)
            return outcome
        require_same_sources(agreement, {rank: one.sources for rank, one in wrote.items()})
        records = sorted(
            (FileRecord(rank, *file) for rank, one in wrote.items() for file in one.files),
            key=lambda record: (record.number, record.rank),
        )
        times = {rank: one.times for rank, one in wrote.items()}
        names = host_names({rank: one.host_key for rank, one in wrote.items()})
        seen = [record for record in records if self._is_near(record.rank)]
        require_visible(self.storage, agreement.save_id, seen, names, self.council.me)
        with gc_paused():
            manifest = encode_manifest(self._manifest(agreement, records))
        # Until told otherwise: Ctrl-C, too, may come after the manifest was put.
        self.tried_to_commit = True
        try:
            commit(self.storage, manifest, self.replaced)
        except ShardkeepError as error:
            self.tried_to_commit = isinstance(error, OutcomeUnknownError)
            raise
        # The checkpoint stands: from here on nothing may make the save fail.
        outcome = Outcome(sum(record.nbytes for record in records), [])
        self._announce_commit(outcome, manifest)
        # Not before: of thousands of old files, the others would wait for each.
        self._remove_replaced()
        spent = self.timings.clock() - start
        write_report(self.storage, make_report(agreement.save_id, times, spent))
        return outcome

    def _is_near(self, rank: int) -> bool:
        """Whether this rank sees what that one writes."""
        hosts = self.options.hosts
        return hosts is None or hosts.number_of[rank] == hosts.mine

    def _announce_commit(self, outcome: Outcome, manifest: bytes) -> None:
        """Once more if the Store fails; if it is gone, the others find the checkpoint itself."""
        for _ in range(2):
            with suppress(RankFailedError):
                if self.options.hosts is not None:
                    self.council.announce("manifest", manifest, word=self.word)
                self.council.announce("write", msgspec.json.encode(outcome), word=self.word)
                break

    def _manifest(self, agreement: Agreement, records: Sequence[FileRecord]) -> Manifest:
        settlement = self.planning.settlement
        if settlement is None:
            raise RuntimeError("only the chair makes the manifest")
        index = {(record.rank, record.number): at for at, record in enumerate(records)}
        table = GridTable(index)
        divisions = divisions_of(
            settlement.entries, settlement.layouts, agreement, self.planning.digest
        )
        tensors = tensor_records(settlement.entries, divisions, table)
        return Manifest(
            save_id=agreement.save_id,
            world=max(self.council.ranks) + 1,
            tree=settlement.tree,
            tensors=tensors,
            grids=tuple(table.grids),
            files=FileTable.of(records),
            per_rank=settlement.per_rank,
            metadata=dict(self.options.metadata),
        )

    def _remove_replaced(self) -> None:
        if self.replaced is None:
            return
        try:
            old = decode_manifest(self.replaced, where=MANIFEST)
        except ShardkeepError:
            # What was replaced was damaged: its files cannot be told, prune finds them.
            return
        names = [file_name(old.save_id, file.rank, file.number) for file in old.files]
        remove_files(self.storage, [*names, report_name(old.save_id)])

    def _explain(
        self, ranks: Sequence[int], shared: Mapping[tuple[int, ...], Mapping[str, int]]
    ) -> None:
        """Find out what differs between two ranks; ends in an error on all."""
        if self.council.me in ranks:
            mine = {key: value for digests in shared.values() for key, value in digests.items()}
            self.council.report("explain", msgspec.json.encode(mine))
        if self.is_chair:
            notes = self.council.collect("explain", ranks)
            a, b = ranks
            details = [msgspec.json.decode(notes[rank], type=dict[str, int]) for rank in (a, b)]
            raise divergence_error((a, b), details)
        # The chair fails, and this is where the others hear it. Not by the name under which only
        # two report: whoever waits in vain would blame all the others for having said nothing.
        self.council.hear("explained")
