"""Functions that behave and misbehave, for tests of the pool itself."""

import os
import time


def sum_of_ranks(rank: int, world: int, *, times: int) -> int:
    # Imported here: the driver, which only names these functions, starts faster without torch.
    import torch
    import torch.distributed as dist

    total = torch.tensor(rank * times)
    dist.all_reduce(total)
    return int(total)


def pid(rank: int, world: int) -> int:
    return os.getpid()


def one_rank_raises_another_dies(rank: int, world: int) -> None:
    if rank == 1:
        os._exit(3)
    raise ValueError(f"rank {rank} is unhappy")


def one_rank_never_comes(rank: int, world: int) -> None:
    import torch.distributed as dist

    if rank == 1:
        time.sleep(600)
    dist.barrier()
