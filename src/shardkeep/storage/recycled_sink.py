"""How is a file written that held other bytes before, so that none of them stays?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shardkeep.storage.local_sink import LocalSink

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_ZEROS = bytes(1024 * 1024)


class RecycledSink(LocalSink):
    """As a LocalSink, into the file that is under `key` and open as `fd`."""

    def write(self, offset: int, buffers: Sequence[ReadableBuffer]) -> None:
        """Write all bytes of `buffers` from `offset` on."""
        super().write(offset, buffers)
        nbytes = sum(memoryview(buffer).nbytes for buffer in buffers)
        if nbytes:
            self._written.append((offset, offset + nbytes))

    def finish(self) -> None:
        """Cut off what the file held before, and finish as ever."""
        if not self._is_finished:
            self._clear()
        super().finish()

    def _clear(self) -> None:
        end = max((stop for _, stop in self._written), default=0)
        for start, stop in _gaps(self._written):
            for at in range(start, stop, len(_ZEROS)):
                self.write(at, [_ZEROS[: stop - at]])
        fd = self._open_fd()
        try:
            self._folder.calls.truncate(fd, end)
        except OSError as error:
            raise self._fail(error, "cutting off what it held before") from error


def _gaps(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What lies before and between spans, which may overlap."""
    at = 0
    for start, stop in sorted(spans):
        if start > at:
            yield at, start
        at = max(at, stop)
