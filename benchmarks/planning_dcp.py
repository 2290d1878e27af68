"""What does PyTorch's coordinator do with the plans of all ranks?"""

import gc
import pickle
import time
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from benchmarks.planned_models import shapes


@dataclass(frozen=True)
class DcpFigures:
    ranks: int
    plan_seconds: float
    """Checking and joining the plans of all ranks."""
    pickle_seconds: float
    """Of the metadata alone; the plans, which come in and go out pickled, are left out."""
    metadata_nbytes: int

    @property
    def seconds(self) -> float:
        return self.plan_seconds + self.pickle_seconds


def plan_as_dcp(ranks: int) -> DcpFigures:
    """The coordinator's work on hand-made local plans of FSDP shards."""
    plans = [_local_plan(rank, ranks) for rank in range(ranks)]
    planner = DefaultSavePlanner()
    planner.set_up_planner({}, is_coordinator=True)
    # What was made up for the benchmark is not to be looked through again and again.
    gc.freeze()
    start = time.process_time()
    _, metadata = planner.create_global_plan(plans)
    planned = time.process_time()
    nbytes = len(pickle.dumps(metadata))
    end = time.process_time()
    gc.unfreeze()
    return DcpFigures(ranks, planned - start, end - planned, nbytes)


def _local_plan(rank: int, ranks: int) -> SavePlan:
    items = [_item(key, shape, rank, ranks) for key, shape in shapes().items()]
    return SavePlan(items, planner_data={key: (key,) for key in shapes()})


def _item(key: str, shape: tuple[int, ...], rank: int, ranks: int) -> WriteItem:
    rows = -(-shape[0] // ranks)
    offsets = torch.Size([min(rows * rank, shape[0]), *(0 for _ in shape[1:])])
    sizes = torch.Size([min(rows, shape[0] - offsets[0]), *shape[1:]])
    chunk = ChunkStorageMetadata(offsets, sizes)
    properties = TensorProperties(dtype=torch.bfloat16)
    data = TensorWriteData(chunk, properties, torch.Size(shape))
    return WriteItem(MetadataIndex(key, offsets), WriteItemType.SHARD, tensor_data=data)
