"""Does a manifest make sense?

A writer asks before it writes, a reader before it trusts. Nothing is expanded here: the work
follows the length of the manifest, not the sizes and counts that it claims.
"""

from __future__ import annotations

from itertools import chain, pairwise

from shardkeep.boxes import check_tiling
from shardkeep.errors import InvalidError
from shardkeep.manifest.dtypes import tensor_nbytes
from shardkeep.manifest.file_checks import check_files
from shardkeep.manifest.grids import BoxGrid, ChunkGrid, SplitGrid
from shardkeep.manifest.limits import (
    MAX_CELLS,
    MAX_NDIM,
    MAX_RANKS,
)
from shardkeep.manifest.model import NO_GRID, Manifest, TensorRecord
from shardkeep.manifest.names import check_save_id
from shardkeep.manifest.plain_json import check_json, check_text, shown
from shardkeep.manifest.runs import Runs


def check_manifest(manifest: Manifest) -> None:
    """Raise an InvalidError that says what is wrong; the tree is checked where it is coded."""
    check_save_id(manifest.save_id)
    if not 1 <= manifest.world <= MAX_RANKS:
        raise InvalidError(f"world: {shown(manifest.world)} ranks; expected 1 to 2**31")
    check_files(manifest.files, manifest.world)
    for index, grid in enumerate(manifest.grids):
        _check_grid(grid, f"grids[{index}]", len(manifest.files))
    _check_tensors(manifest)
    _check_per_rank(manifest.per_rank)
    check_json(dict(manifest.metadata), "metadata")


def _check_grid(grid: ChunkGrid, what: str, file_count: int) -> None:
    if isinstance(grid, SplitGrid):
        _check_splits(grid, what)
    if grid.cell_count > MAX_CELLS:
        raise InvalidError(f"{what}: {shown(grid.cell_count)} cells; expected at most {MAX_CELLS}")
    if grid.cell_count != len(grid.files):
        raise InvalidError(f"{what}: {grid.cell_count} cells, but files for {len(grid.files)}")
    _check_indices(grid.files, what, file_count)


def _check_splits(grid: SplitGrid, what: str) -> None:
    if max(len(grid.splits), *map(len, grid.splits), 0) > MAX_NDIM:
        raise InvalidError(f"{what}: more than {MAX_NDIM} dims, or splits of one dim")
    for count in chain.from_iterable(grid.splits):
        if not 1 <= count <= MAX_CELLS:
            raise InvalidError(f"{what}: a dim is split into {shown(count)} pieces")


def _check_indices(files: Runs, what: str, file_count: int) -> None:
    if len(files) and files.bounds[1] >= file_count:
        raise InvalidError(f"{what}: file {files.bounds[1]} is not one of {file_count} files")


def _check_tensors(manifest: Manifest) -> None:
    keys = {record.key for record in manifest.tensors}
    if len(keys) != len(manifest.tensors):
        raise InvalidError("tensors: a key is there twice")
    # Of thousands of layers alike, only one is looked at.
    distinct = {(record.dtype, record.shape, record.grid): record for record in manifest.tensors}
    for record in distinct.values():
        try:
            _check_tensor(record, manifest.grids)
        except InvalidError as error:
            raise InvalidError(f"tensors: {shown(record.key)}: {error}") from None


def _check_tensor(record: TensorRecord, grids: tuple[ChunkGrid, ...]) -> None:
    nbytes = tensor_nbytes(record.dtype, record.shape)
    if (nbytes == 0) != (record.grid == NO_GRID):
        raise InvalidError(f"shape {list(record.shape)} does not go with grid {shown(record.grid)}")
    if not NO_GRID <= record.grid < len(grids):
        raise InvalidError(f"grid {shown(record.grid)} is not one of {len(grids)} grids")
    if nbytes:
        _check_tiles(grids[record.grid], record)


def _check_tiles(grid: ChunkGrid, record: TensorRecord) -> None:
    if isinstance(grid, SplitGrid):
        # Pieces of whole dims tile by construction.
        if len(grid.splits) != len(record.shape):
            raise InvalidError(f"shape {list(record.shape)} in a grid of {len(grid.splits)} dims")
        return
    _check_boxes(grid, record)


def _check_boxes(grid: BoxGrid, record: TensorRecord) -> None:
    if any(box.is_empty for box in grid.boxes):
        raise InvalidError(f"grid {record.grid} has a box without cells")
    report = check_tiling(record.shape, grid.boxes, limit=1)
    if not report.is_tiling:
        raise InvalidError(f"grid {record.grid} does not tile it: {report.describe()}")


def _check_per_rank(keys: tuple[str, ...]) -> None:
    for key in keys:
        check_text(key, "per_rank")
    if any(one >= following for one, following in pairwise(keys)):
        raise InvalidError("per_rank: keys are not sorted and distinct")
