"""What can go wrong, and what can a handler do about it?

Every error is a `ShardkeepError` with a `kind` that stays the same from release to release. The
classes right below it group errors by what a handler would do: look elsewhere, settle a
disagreement, correct the input, fetch another copy, see to the storage, retry later, choose
another way. Where a builtin means the same, the class is also that builtin.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby
from typing import ClassVar, cast


class ShardkeepError(Exception):
    """Raised for every failure that shardkeep reports: catch it to catch them all."""

    kind: ClassVar[str] = "error"


class NotFoundError(ShardkeepError, KeyError):
    """Raised when something that was asked for by name does not exist."""

    kind = "not_found"

    # KeyError shows the repr of its argument: quotes around a sentence, newlines as \n.
    __str__ = Exception.__str__


class ConflictError(ShardkeepError, ValueError):
    """Raised when two things, each fine by itself, contradict each other."""

    kind = "conflict"


class InvalidError(ShardkeepError, ValueError):
    """Raised when an argument or a description makes no sense: the caller can correct it."""

    kind = "invalid"


class CorruptError(ShardkeepError, ValueError):
    """Raised when stored data are not what was written: no retry helps, another copy may."""

    kind = "corrupt"


class StorageError(ShardkeepError, OSError):
    """Raised when the storage refuses: no space, no permission, an I/O error.

    Takes `(errno, message, path)` as OSError does, or a message alone.
    """

    kind = "storage"


class DeadlineError(ShardkeepError, TimeoutError):
    """Raised when a wait reaches its deadline."""

    kind = "deadline"


class UnsupportedError(ShardkeepError, NotImplementedError):
    """Raised when a request makes sense but cannot be served: the message names another way."""

    kind = "unsupported"


class VersionError(UnsupportedError):
    """Raised when stored data have a format version that this shardkeep does not read."""

    kind = "version"


class CoverError(InvalidError):
    """Raised when boxes that should tile a shape leave a gap or overlap."""

    kind = "cover"


class LayoutError(InvalidError):
    """Raised when a layout, a mesh, a placement or a sharding spec cannot describe a tensor."""

    kind = "layout"


class CompanionMismatch(ShardkeepError, ValueError):  # noqa: N818  PyTorch's name for it
    """Raised when a state dict and the one it is copied into differ in structure."""

    kind = "companion_mismatch"


class RanksDisagreeError(ConflictError):
    """Raised on all ranks when arguments or state dicts that must be equal differ between them."""

    kind = "ranks_disagree"


class RankFailedError(ShardkeepError, RuntimeError):
    """Raised on all ranks when one or more of them failed in a common act.

    `failures` maps each failed global rank to its message; `phase` says what the ranks were doing.

    >>> print(RankFailedError({1: "disk full", 2: "disk full", 5: "no such key"}, "gather"))
    gather failed on ranks 1-2, 5
      ranks 1-2: disk full
      rank 5: no such key
    """

    kind = "rank_failed"

    def __init__(self, failures: Mapping[int, str], phase: str) -> None:
        self.failures: Mapping[int, str] = dict(sorted(failures.items()))
        self.phase = phase
        self.undone = False
        """Whether it is certain that the common act left nothing behind."""
        # These arguments, not the text, are what pickle hands to the copy.
        super().__init__(self.failures, phase)

    def __str__(self) -> str:
        ranks_by_message: dict[str, list[int]] = {}
        for rank, message in self.failures.items():
            ranks_by_message.setdefault(message, []).append(rank)
        lines = [f"{self.phase} failed on {name_ranks(self.failures)}"]
        for message, ranks in ranks_by_message.items():
            lines.append(f"  {name_ranks(ranks)}: " + message.replace("\n", "\n    "))
        return "\n".join(lines)


class RankInputError(RankFailedError, ValueError):
    """Raised on all ranks when the input of one or more of them is wrong."""

    kind = "rank_input"


@cache
def failure_of_kind(kind: str, *, is_input: bool) -> type[RankFailedError]:
    """The class to raise where another rank failed: it can be caught as what that rank raised.

    >>> issubclass(failure_of_kind("corrupt", is_input=True), CorruptError)
    True
    """
    base = RankInputError if is_input else RankFailedError
    for cause in _descendants(ShardkeepError):
        if cause.kind == kind and not issubclass(cause, RankFailedError):
            made = type(f"Remote{cause.__name__}", (base, cause), {"kind": base.kind})
            return cast("type[RankFailedError]", made)
    return base


def _descendants(error: type[ShardkeepError]) -> Iterator[type[ShardkeepError]]:
    for child in error.__subclasses__():
        yield child
        yield from _descendants(child)


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 5` or `ranks 0-2, 5`: runs are joined, so that thousands of ranks stay readable."""
    numbers = list(ranks)
    runs: list[str] = []
    # Within a run of consecutive ranks, rank minus position does not change.
    for _, pairs in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in pairs]
        runs.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(runs)}"
