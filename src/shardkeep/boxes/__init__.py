"""Integers only: boxes, how they split, tile, meet, and where their bytes lie."""

from shardkeep.boxes.box import Box as Box
from shardkeep.boxes.grids import Grid as Grid
from shardkeep.boxes.meeting import (
    Meeting as Meeting,
    find_overlaps as find_overlaps,
    meetings as meetings,
)
from shardkeep.boxes.ranges import ByteRanges as ByteRanges, byte_ranges as byte_ranges
from shardkeep.boxes.splits import (
    Runs as Runs,
    Span as Span,
    ceil_split as ceil_split,
    chunk_runs as chunk_runs,
    interleaved_chunk_runs as interleaved_chunk_runs,
    nested_split as nested_split,
)
from shardkeep.boxes.tilings import (
    Overlap as Overlap,
    TilingReport as TilingReport,
    check_tiling as check_tiling,
    require_tiling as require_tiling,
)
