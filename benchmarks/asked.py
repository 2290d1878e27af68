"""What was asked of this run: how large, how often, which contenders and settings?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar


class Named(Protocol):
    """A contender, whatever it does."""

    name: str


T = TypeVar("T", bound=Named)


@dataclass(frozen=True)
class Asked:
    """The same for all workloads of a run."""

    quick: bool = False
    repetitions: int | None = None
    contenders: Sequence[str] = ()
    """Starts of names; all if there are none."""
    setting: str = ""
    """A part of a setting's name; all have an empty one."""
    profiled: bool = False
    """Whether to say where the CPU time goes, which slows everyone down."""

    def turns(self, usual: int, quick: int) -> int:
        return self.repetitions or (quick if self.quick else usual)

    def unless_quick(self, several: Sequence[T]) -> Sequence[T]:
        """Those who take long to start are left out of a quick run."""
        return () if self.quick else several

    def chosen(self, several: Sequence[T]) -> list[T]:
        return [one for one in several if self.wants(one.name)]

    def wants(self, contender: str) -> bool:
        return not self.contenders or contender.startswith(tuple(self.contenders))

    def has(self, setting: str) -> bool:
        return self.setting in setting
