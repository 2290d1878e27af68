"""How much work has the coordinator of a large job? A real save, whose other ranks are made up.

The coordinator plans, writes its own part and commits; what the others would have reported, and
the files that they would have written, are invented.
"""

import json
import secrets
import time
from collections.abc import Mapping, Sequence

import torch

from benchmarks.planned_models import Parallelism, forget, view_of
from shardkeep.manifest import file_name
from shardkeep.state.frozen import Memory
from shardkeep.state.keeping import KeptState
from shardkeep.storage import MemoryStorage
from shardkeep.storage.protocols import Entries, Entry
from shardkeep.transfer.council import SoloCouncil
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.save import SaveOptions, Timings, run_save


class Crowd(SoloCouncil):
    """Rank 0 of many; the others report what it reports, about files of their own."""

    def __init__(self, size: int) -> None:
        super().__init__(0)
        self.ranks: Sequence[int] = range(size)
        self.files: dict[tuple[int, int], int] = {}
        self.seconds = 0.0
        """Spent on making up reports: no work of the coordinator's."""

    def collect(
        self, phase: str, ranks: Sequence[int] | None = None, *, word: bytes = b""
    ) -> Mapping[int, bytes]:
        start = time.process_time()
        mine = self._notes[phase]
        made = self._wrote(mine) if phase == "write" else dict.fromkeys(self.ranks, mine)
        self.seconds += time.process_time() - start
        return made

    def _wrote(self, mine: bytes) -> Mapping[int, bytes]:
        report = json.loads(mine)
        notes: dict[int, bytes] = {}
        for rank in self.ranks:
            files = [
                [n, size, head, hash((rank, n)) % 2**63] for n, size, head, _ in report["files"]
            ]
            notes[rank] = json.dumps({**report, "files": files}).encode()
            self.files.update({(rank, number): size for number, size, _, _ in files})
        return notes


class CrowdStorage(MemoryStorage):
    """Memory that also lists the files of the crowd."""

    def __init__(self, crowd: Crowd) -> None:
        super().__init__(f"crowd-{secrets.token_hex(8)}", create=True)
        self._crowd = crowd

    def list(self) -> Entries:
        mine = [entry.key for entry in super().list()]
        # The save's own lock is listed, too.
        (save_id,) = {key.split("-")[0] for key in mine if key.endswith(".safetensors")}
        return [
            Entry(file_name(save_id, *file), nbytes) for file, nbytes in self._crowd.files.items()
        ]


def commit_seconds(how: Parallelism, ranks: int) -> tuple[float, int]:
    """CPU seconds that the coordinator spends beyond what every rank does; bytes of the manifest.

    That is, its planning with all reports, and its commit.
    """
    forget()
    crowd = Crowd(ranks)
    storage = CrowdStorage(crowd)
    entries = how.entries(how.mesh(ranks))
    view = view_of(entries)
    memory: dict[str, Sequence[Memory]] = {
        key: [torch.zeros(entry.layout.buffer_shapes_of(0)[0], dtype=torch.bfloat16)]
        for key, entry in entries.items()
        if entry.layout is not None
    }
    kept = KeptState(view.tree, dict(entries), memory)
    options = SaveOptions(False, 2, "sample", {}, Meter("saving", None, show=False))
    timings = Timings(clock=time.process_time)
    run_save(lambda: (kept, storage), crowd, options, timings)
    seconds = timings.seconds["plan"] + timings.seconds["commit"] - crowd.seconds
    return seconds, storage.size("manifest.json")
