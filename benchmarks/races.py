"""How do contenders take turns at saving and loading one state?

All ranks of a race are started once. In each repetition everyone saves from the same memory and
loads into the same; what comes back is compared in the first one. Nothing is left behind.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from benchmarks.asked import Asked
from benchmarks.contenders.contender import Contender
from benchmarks.figures import RAW, Figure
from benchmarks.places import TMPFS, evict, folder_on, level_the_field, remove
from benchmarks.ranks import on_ranks
from benchmarks.state_dicts import Shapes
from benchmarks.stored_states import Placing, make, nbytes_of, require_equal, zero
from benchmarks.turns import Turns, figures_of, in_short, in_turn

_TINY: Shapes = {"a": (8, 4)}
# A file that a checkpoint prunes is first kept, then taken again.
_PRIMING_SAVES = 3


@dataclass(frozen=True)
class Race:
    """A state that some ranks save to a place, and load from there."""

    workload: str
    setting: str
    shapes: Shapes
    contenders: Sequence[Contender]
    repetitions: int
    ranks: int = 1
    placing: Placing = Placing.ROWS
    place: Path = TMPFS
    times_loads: bool = True
    once: Sequence[str] = ()
    """Starts of names of those who are so slow that they take part in the first repetition only."""

    def run(self) -> list[Figure]:
        """The figures of all contenders."""
        with folder_on(self.place) as folder:
            by_rank = on_ranks(self.ranks, lambda: _Racer(self, folder).run())
        return figures_of(self.workload, self.setting, by_rank)


def races_apart(
    asked: Asked,
    workload: str,
    setting: str,
    shapes: Callable[[bool], Shapes],
    together: Sequence[Contender],
    others: Sequence[Contender],
    repetitions: int,
    *,
    place: Path = TMPFS,
) -> list[Figure]:
    """Of one process each: those that goals speak of take turns, each of the others is alone.

    All in one might need more memory than there is, and what a library leaves in a process makes
    those slower that come after it.
    """
    figures: list[Figure] = []
    for contenders in (together, *([one] for one in others)):
        chosen = asked.chosen(contenders)
        if chosen:
            race = Race(workload, setting, shapes(asked.quick), chosen, repetitions, place=place)
            figures += race.run()
    return figures


class _Racer:
    """One rank of a race."""

    def __init__(self, race: Race, folder: Path) -> None:
        self.race = race
        self.folder = folder
        self.turns = Turns()
        self.is_first = dist.get_rank() == 0
        self.nbytes = nbytes_of(race.shapes)

    def run(self) -> Turns:
        ready = [one for one in self.race.contenders if self._can(one, self._warm_up)]
        self.state = make(self.race.shapes, self.race.placing, filled=True)
        self.target = make(self.race.shapes, self.race.placing, filled=False)
        ready = [one for one in ready if not one.keeps or self._can(one, self._prime)]
        for turn in range(self.race.repetitions):
            for contender in in_turn(self._those_of(turn, ready), turn):
                if not self._can(contender, lambda one: self._turn(one, turn)):  # noqa: B023
                    ready.remove(contender)
        return self.turns

    def _those_of(self, turn: int, ready: Sequence[Contender]) -> list[Contender]:
        slow = tuple(self.race.once)
        return [one for one in ready if turn == 0 or not (slow and one.name.startswith(slow))]

    def _can(self, contender: Contender, act: Callable[[Contender], None]) -> bool:
        """Do it; if one of the others fails at it, alone, keep what it said."""
        try:
            act(contender)
        except Exception as error:
            if not contender.is_peer or self.race.ranks > 1:
                raise
            for what in (contender.save_act, *(["load"] if contender.loads() else [])):
                self.turns.spans.pop((what, contender.name), None)
                self.turns.failures[what, contender.name] = in_short(error)
            remove(self._path(contender))
            return False
        return True

    def _warm_up(self, contender: Contender) -> None:
        """Load the code that will run, with a state that takes no time."""
        contender.prepare()
        tiny = make(_TINY, self.race.placing, filled=True)
        path = self._path(contender, "warm")
        contender.save(tiny, path)
        dist.barrier()
        for load in (contender.load, *contender.loads().values()):
            load(tiny, path)

    def _prime(self, contender: Contender) -> None:
        for _ in range(_PRIMING_SAVES):
            contender.save(self.state, self._path(contender))

    def _path(self, contender: Contender, kind: str = "full") -> Path:
        return self.folder / f"{kind}-{self.race.contenders.index(contender)}"

    def _turn(self, contender: Contender, turn: int) -> None:
        path = self._path(contender)
        if self.is_first:
            level_the_field(self.nbytes)
        self.turns.timed(
            contender.save_act, contender.name, lambda: contender.save(self.state, path)
        )
        written = contender.written_nbytes()
        if written is not None:
            self.turns.written[contender.name] = written
        is_checked = turn == 0 and not (contender.name == RAW and not self.race.times_loads)
        if self.race.times_loads and contender.loads():
            self._time_loads(contender, path, is_checked)
        elif is_checked:
            zero(self.target)
            contender.load(self.target, path)
            require_equal(self.target, self.state, contender.name)
        dist.barrier()
        if self.is_first and not contender.keeps:
            remove(path)

    def _time_loads(self, contender: Contender, path: Path, is_checked: bool) -> None:
        for number, (name, load) in enumerate(contender.loads().items()):
            if number:
                # Whoever reads files first finds pages that nobody has used, which takes longer.
                self._save_again(contender, path)
            self._settle()
            if is_checked:
                zero(self.target)
            self.turns.timed("load", name, lambda: load(self.target, path))  # noqa: B023
            if is_checked:
                require_equal(self.target, self.state, name)
            if self.race.place != TMPFS:
                if self.is_first:
                    evict(path)
                self.turns.timed("load, cold", name, lambda: load(self.target, path))  # noqa: B023

    def _save_again(self, contender: Contender, path: Path) -> None:
        if self.is_first:
            remove(path)
        dist.barrier()
        contender.save(self.state, path)
        dist.barrier()

    def _settle(self) -> None:
        """What was saved is on the disk before it is read, so that nobody reads beside writes."""
        if self.is_first and self.race.place != TMPFS:
            os.sync()
