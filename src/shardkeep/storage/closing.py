"""What is closed at the end of a `with` block?"""

from __future__ import annotations

from types import TracebackType
from typing import Self


class ClosedAtEnd:
    """`with` closes it, whatever happened."""

    def close(self) -> None:
        """Free what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
