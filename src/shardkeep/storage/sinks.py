"""What does `with` mean for an object being written?"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from shardkeep.errors import StorageError


class FinishOrAbort:
    """Finishes at the end of `with`; aborts if the block or the finish fails."""

    def finish(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._abort_after(error)
            return
        try:
            self.finish()
        except BaseException as failure:
            self._abort_after(failure)
            raise

    def _abort_after(self, error: BaseException) -> None:
        try:
            self.abort()
        except StorageError as second:
            # The first error is the cause: it must not be hidden by one of the clean-up.
            error.add_note(f"and then, cleaning up: {second}")
