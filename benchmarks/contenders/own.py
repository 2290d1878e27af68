"""How is shardkeep used? Digests on, as always."""

from collections.abc import Mapping
from pathlib import Path

import shardkeep as sk
import shardkeep.checkpoint  # Imported before processes are forked.
from benchmarks.contenders.contender import Contender, Load
from benchmarks.figures import OURS
from benchmarks.stored_states import State


class Shardkeep(Contender):
    """`save` and `load`, with or without fsync."""

    name = OURS
    is_peer = False

    def __init__(self, *, durable: bool = False) -> None:
        self.durable = durable
        self.save_act = "save, fsync" if durable else "save"
        self.saved: sk.SaveResult | None = None

    def save(self, state: State, path: Path) -> None:
        self.saved = sk.save(state, path, durable=self.durable)

    def load(self, state: State, path: Path) -> None:
        sk.load(path, into=state)

    def loads(self) -> Mapping[str, Load]:
        return {} if self.durable else super().loads()

    def written_nbytes(self) -> int | None:
        return self.saved.nbytes if self.saved else None


class RecycledFiles(Contender):
    """A run that keeps one checkpoint: files of the one that is pruned may be written again."""

    name = OURS
    save_act = "save, recycled files"
    is_peer = False
    keeps = True

    def __init__(self) -> None:
        self.runs: dict[Path, sk.Checkpointer] = {}
        self.step = 0

    def save(self, state: State, path: Path) -> None:
        run = self.runs.get(path)
        if run is None:
            run = sk.Checkpointer(path, keep_last=1, durable=False, recycle=True)
            self.runs[path] = run
        self.step += 1
        run.save(self.step, state)

    def load(self, state: State, path: Path) -> None:
        sk.load(self.runs[path].path_of(self.step), into=state)

    def loads(self) -> Mapping[str, Load]:
        return {}
