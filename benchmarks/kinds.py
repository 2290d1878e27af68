"""What kind of work is a function part of?"""

import re
from collections.abc import Sequence
from enum import Enum
from pathlib import PurePath

from benchmarks.perf import NOWHERE, Frame


class Kind(Enum):
    """A kind of work that takes CPU time; waiting takes none."""

    KERNEL_COPY = "kernel copies"
    PAGES = "pages"
    FORK = "fork"
    KERNEL = "other kernel"
    COPY = "user copies"
    HASH = "hashing"
    PYTHON = "Python"
    NATIVE = "torch, native"


# Between the kernel's memory, such as files in the page cache, and that of a process. A processor
# goes on before it has stored what it copied: the locked instruction that comes next waits for it,
# of whatever function that is. Where both memories are in the cache, those functions take no time.
_KERNEL_COPIES = re.compile(
    r"^(rep_movs|_*copy_(to|from)_|copy_user|copy_(page|folio)_(to|from)_iter"
    r"|(shmem_file_read_iter|filemap_read|\w+_write_end|folio_unlock \w+_write_end)\b)"
)
# Page tables of a parent, copied for its child.
_FORKS = re.compile(r"^(dup_mm|copy_page_range|copy_p[4mu]?d_range|copy_pte_range)")
# Whoever needs a page, in a fault or for a file, finds one, marks it as used, or gives it back.
_PAGES = re.compile(
    r"page_fault|handle_mm_fault|clear_(huge_)?page|get_folio|filemap_get_|alloc_(pages|folio)"
    r"|folio_alloc|get_page_from_freelist|mark_accessed|folio_activate|folios_put|free_(pages|unref)"
    r"|unmap_vmas|zap_p|exit_mmap|undo_range|truncate|madvise|mprotect|mremap|munmap|do_mmap"
)
_COPIES = re.compile(r"mem(p?cpy|move|set)|copy_?kernel|_to_(contig|strided)|_cast_\w+_to_")
_HASHES = re.compile(r"XXH|xxh|crc32|sha(1|256|512)|md5|blake")
_NOT_KERNEL = (NOWHERE.binary, "[vdso]", "[vsyscall]", "[heap]", "[stack]")


def kind_of(frames: Sequence[Frame]) -> Kind:
    """By the function that ran, the first one; in the kernel, also by what called it."""
    leaf = frames[0] if frames else NOWHERE
    if _is_kernel(leaf):
        return _kind_in_kernel([one.symbol for one in frames if _is_kernel(one)])
    if _HASHES.search(leaf.symbol) or "xxhash" in leaf.binary:
        return Kind.HASH
    if _COPIES.search(leaf.symbol):
        return Kind.COPY
    return Kind.PYTHON if _is_python(leaf.binary) else Kind.NATIVE


def _is_kernel(frame: Frame) -> bool:
    """The kernel and its modules stand in brackets."""
    return frame.binary.startswith("[") and frame.binary not in _NOT_KERNEL


def _kind_in_kernel(symbols: Sequence[str]) -> Kind:
    if _KERNEL_COPIES.search(" ".join(symbols[:2])):
        return Kind.KERNEL_COPY
    for kind, names in ((Kind.FORK, _FORKS), (Kind.PAGES, _PAGES)):
        if any(map(names.search, symbols)):
            return kind
    return Kind.KERNEL


def _is_python(binary: str) -> bool:
    """The interpreter, or a module of its standard library."""
    path = PurePath(binary)
    return path.name.startswith(("python", "libpython")) or path.parent.name == "lib-dynload"
