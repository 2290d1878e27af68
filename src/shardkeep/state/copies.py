"""How are many tensors copied at the speed of the memory, not of one core?"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from shardkeep.state.fresh_pages import FreshPages

# Below it, starting threads takes longer than they save.
_WORTH_THREADS_NBYTES = 8 * 2**20
_PIECE_NBYTES = 16 * 2**20


class Copies:
    """Copies that are noted first and then made together, by several threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._noted: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Fill `target` from `source`, of the same shape, when it comes to it."""
        self._noted.append((target, source))

    def run(self) -> None:
        """Make all copies; what comes from accelerators may still be on its way."""
        nbytes = sum(target.nbytes for target, _ in self._noted)
        if self._threads == 1 or nbytes < _WORTH_THREADS_NBYTES:
            for target, source in self._noted:
                target.copy_(source, non_blocking=True)
            return
        # Who is done with one takes the next: a thread whose core is taken away holds up nobody.
        pieces = iter([piece for target, source in self._noted for piece in _cut(target, source)])
        with ThreadPoolExecutor(self._threads, "shardkeep-copy") as pool:
            list(pool.map(partial(_copy, FreshPages()), [pieces] * self._threads))


Pair = tuple[torch.Tensor, torch.Tensor]


def _copy(pages: FreshPages, pairs: Iterator[Pair]) -> None:
    # Whether gradients are recorded is a matter of each thread.
    with torch.no_grad():
        for target, source in pairs:
            pages.copy(target, source)


def _cut(target: torch.Tensor, source: torch.Tensor) -> list[Pair]:
    """A large pair in pieces, so that the threads get as much each."""
    if target.nbytes <= _PIECE_NBYTES or not (target.is_contiguous() and source.is_contiguous()):
        return [(target, source)]
    count = _PIECE_NBYTES // target.itemsize
    to, of = target.view(-1), source.view(-1)
    return [(to[at : at + count], of[at : at + count]) for at in range(0, len(to), count)]
