"""How does a benchmark run a function on ranks that have no history?

Processes are forked from one that has imported everything and done nothing: they start in
milliseconds, and what earlier ranks allocated, cached or connected is not theirs.
"""

import multiprocessing
import os
import signal
import socket
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, cast

import torch
import torch._dynamo  # DTensor would import it in every process, which takes a second.
import torch.distributed as dist

T = TypeVar("T")


class RankFailed(RuntimeError):  # noqa: N818
    """A rank raised or died; the message has its traceback."""


def on_ranks(size: int, act: Callable[[], T]) -> list[T]:
    """What `act` returned on each of `size` fresh processes, joined by a gloo group, by rank.

    One that is alone has all cores for torch; of several, each has one, as torchrun sets it.
    """
    fork = multiprocessing.get_context("fork")
    port = _free_port()
    ranks: list[tuple[Any, Connection]] = []
    for rank in range(size):
        mine, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=_work, args=(rank, size, port, act, theirs))
        process.start()
        theirs.close()
        ranks.append((process, mine))
    try:
        return _answers({answers: rank for rank, (_, answers) in enumerate(ranks)})
    finally:
        for process, _ in ranks:
            process.kill()
            process.join()


def _answers(waiting: dict[Connection, int]) -> list[Any]:
    """By rank. The first failure is raised at once: the others may wait for that rank."""
    found: dict[int, Any] = {}
    while waiting:
        for ready in wait(list(waiting)):
            rank = waiting.pop(cast("Connection", ready))
            found[rank] = _answer(rank, cast("Connection", ready))
    return [found[rank] for rank in sorted(found)]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _answer(rank: int, answers: Connection) -> Any:
    try:
        is_right, answer = answers.recv()
    except EOFError:
        raise RankFailed(f"rank {rank} died") from None
    if not is_right:
        raise RankFailed(f"rank {rank}:\n{answer}")
    return answer


def _work(rank: int, size: int, port: int, act: Callable[[], object], answers: Connection) -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)) if size == 1 else 1)
    # PyTorch says of its ShardedTensor, at each use, that it will go.
    warnings.simplefilter("ignore", FutureWarning)
    # The parent's way to end is not this process's, which is killed.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # What goes wrong is answered; background processes of others report every step here.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # What torchrun sets: background processes of others look for it.
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    try:
        # The store that torchrun's jobs have.
        store = dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0)  # pyright: ignore
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        answer = act()
        # Processes that a library started would outlive this one.
        for child in multiprocessing.active_children():
            child.kill()
        answers.send((True, answer))
        # Whoever leaves first would break the others' connections.
        dist.barrier()
    except BaseException:
        answers.send((False, traceback.format_exc()))
