"""What does a contender do: save a state, and load it into tensors that are there?"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.stored_states import State

Load = Callable[[State, Path], None]


class Contender(ABC):
    """One library, used in one way."""

    name: str
    save_act = "save"
    is_peer = True
    """Another's: if it cannot do what is asked, that is a finding and no error."""
    keeps = False
    """Whether it saves again and again to the same path, without a fresh start."""

    def prepare(self) -> None:  # noqa: B027  most need nothing
        """Import what it needs; ModuleNotFoundError if it is not installed."""

    @abstractmethod
    def save(self, state: State, path: Path) -> None: ...

    @abstractmethod
    def load(self, state: State, path: Path) -> None: ...

    def loads(self) -> Mapping[str, Load]:
        """The ways to load that are measured, by the name that they have there."""
        return {self.name: self.load}

    def written_nbytes(self) -> int | None:
        """What this rank wrote in the last save, if it tells."""
        return None
