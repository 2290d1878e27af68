"""Does a table of files make sense?"""

from __future__ import annotations

from itertools import pairwise

from shardkeep.errors import InvalidError
from shardkeep.manifest.files import FileTable
from shardkeep.manifest.limits import MAX_FILES, MAX_HEADER_LENGTH, MAX_NUMBER, PAGE


def check_files(files: FileTable, world: int) -> None:
    """Raise an InvalidError unless the columns make up a table of files of `world` ranks."""
    columns = files.ranks, files.numbers, files.nbytes, files.header_nbytes
    if len(files) > MAX_FILES:
        raise InvalidError(f"files: {len(files)}; expected at most {MAX_FILES}")
    if any(len(column) != len(files) for column in columns):
        raise InvalidError(f"files: columns of lengths {[*map(len, columns), len(files)]}")
    if files.ranks.bounds[1] >= world:
        raise InvalidError(f"files: rank {files.ranks.bounds[1]} is not one of {world} ranks")
    if files.numbers.bounds[1] >= MAX_NUMBER:
        raise InvalidError(f"files: number {files.numbers.bounds[1]}; expected below 2**31")
    _check_order(files)
    _check_sizes(files)


def _check_order(files: FileTable) -> None:
    for one, following in pairwise(zip(files.numbers, files.ranks, strict=True)):
        if one >= following:
            raise InvalidError(
                f"files: rank {following[1]}'s number {following[0]} does not stand in order"
            )


def _check_sizes(files: FileTable) -> None:
    starts = files.header_nbytes
    if any(first % PAGE or (step % PAGE and count > 1) for first, step, count in starts.runs):
        raise InvalidError(f"files: a header_nbytes is no multiple of {PAGE}")
    if len(files) and not PAGE <= starts.bounds[0] <= starts.bounds[1] <= MAX_HEADER_LENGTH + 8:
        raise InvalidError(f"files: header_nbytes from {starts.bounds[0]} to {starts.bounds[1]}")
    for index, (size, start) in enumerate(zip(files.nbytes, starts, strict=True)):
        if size < start:
            raise InvalidError(f"files: file {index} of {size} bytes ends before its data")
