"""Do runs whose ranks are killed end with the bits of runs that are left alone?

A program: it imports torch once and forks the ranks, which makes a start cheap. Here rank 0 keeps
the Store, as without torchrun: when it is killed, the Store is gone, too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import torch._dynamo

import shardkeep as sk
from examples import train_gpt
from examples.resume_proof import Kill, prove

_PATIENCE = 20.0
# What the ranks would import when they come to it is imported once for all.
PRELOADED = (torch._dynamo, sk.Checkpointer, sk.DataCursor, sk.rng_state)


class ForkedJob:
    """Ranks of the training script; when one dies, the others are ended as torchrun does it.

    By SIGTERM, and after a while by SIGKILL: gloo may wait for a dead rank for half an hour.
    """

    def __init__(self, arguments: Sequence[str], processes: int, log: int) -> None:
        self.returncode: int | None = None
        self._patient_until: float | None = None
        self._codes: dict[int, int] = {}
        port = free_port()
        self._pids = {
            rank: fork(arguments, rank, processes, port, log) for rank in range(processes)
        }

    def workers(self) -> dict[int, int]:
        return {rank: pid for rank, pid in self._pids.items() if rank not in self._codes}

    def poll(self) -> int | None:
        for rank, pid in self.workers().items():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._codes[rank] = os.waitstatus_to_exitcode(status)
        if any(self._codes.values()):
            if self._patient_until is None:
                self._patient_until = time.monotonic() + _PATIENCE
                self.send(signal.SIGTERM)
            elif time.monotonic() > self._patient_until:
                self.send(signal.SIGKILL)
        if not self.workers():
            self.returncode = next((code for code in self._codes.values() if code), 0)
        return self.returncode

    def send(self, number: signal.Signals) -> None:
        for pid in self.workers().values():
            os.kill(pid, number)


@contextmanager
def forked(run: Path, *options: object, processes: int, log: Path) -> Iterator[ForkedJob]:
    """The training script on several processes, none of which is left afterwards."""
    with log.open("wb") as output:
        job = ForkedJob([str(run), *map(str, options)], processes, output.fileno())
        try:
            yield job
        finally:
            job.send(signal.SIGKILL)
            for pid in job.workers().values():
                os.waitpid(pid, 0)


def fork(arguments: Sequence[str], rank: int, world: int, port: int, log: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sys.argv[1:] = arguments
    return be_rank()


def be_rank() -> NoReturn:
    code = 1
    try:
        train_gpt.main()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("runs", help="JSON: for each parallelism its kills")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text: Any = train_gpt.markov_text()
    train_gpt.markov_text = lambda: text
    for way, kills in json.loads(arguments.runs).items():
        proof = prove(way, [Kill(**kill) for kill in kills], arguments.folder / way, forked)
        print(json.dumps(asdict(proof)), flush=True)


if __name__ == "__main__":
    main()
