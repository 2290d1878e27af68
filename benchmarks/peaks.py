"""How much memory does an act take at its peak, beyond what is there before?"""

import ctypes
import gc
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist

_SAMPLE_SECONDS = 0.05
_STATUS_NBYTES = 16 * 1024


def peak_nbytes(act: Callable[[], object]) -> int:
    """Of this process alone, to the page. SPMD."""
    status = os.open("/proc/self/status", os.O_RDONLY)
    forget = os.open("/proc/self/clear_refs", os.O_WRONLY)
    # Memory that the readings took between them would count as the act's.
    before, after = bytearray(_STATUS_NBYTES), bytearray(_STATUS_NBYTES)
    _level()
    os.write(forget, b"5")
    os.preadv(status, [before], 0)
    result = act()
    os.preadv(status, [after], 0)
    del result
    for file in (status, forget):
        os.close(file)
    return max(0, _kib(after.decode(), "VmHWM") - _kib(before.decode(), "VmRSS"))


def peak_nbytes_of_tree(act: Callable[[], object]) -> int:
    """Of this process and all that it starts; what they share counts once. Sampled."""
    _level()
    before, peaks, ended = _tree_nbytes(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            peaks.append(_tree_nbytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        act()
    finally:
        ended.set()
        watcher.join()
    return max(0, max(peaks) - before)


def _level() -> None:
    gc.collect()
    # What is free in the heap goes back, else a call that uses it seems to need nothing.
    ctypes.CDLL(None).malloc_trim(0)
    dist.barrier()


def _tree_nbytes() -> int:
    total = 0
    for pid in _tree(os.getpid()):
        # It may have ended since.
        with suppress(OSError):
            total += _kib(Path(f"/proc/{pid}/smaps_rollup").read_text(), "Pss")
    return total


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                yield from _tree(int(child))


def _kib(text: str, field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.M)
    if found is None:
        raise RuntimeError(f"the kernel does not tell {field}")
    return 1024 * int(found[1])
