"""What does a rank of a pool do? It runs the functions that the driver names, one by one.

Started by torchrun as a module, never imported by tests.
"""

import datetime
import importlib
import json
import os
import queue
import socket
import sys
import threading
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh

GROUP_TIMEOUT = datetime.timedelta(seconds=30)


class Driver:
    """The connection to pytest. Reads in a thread, so that it works while a function runs."""

    def __init__(self, rank: int) -> None:
        port, self._token = os.environ["SHARDKEEP_POOL"].split(":")
        self._socket = socket.create_connection(("127.0.0.1", int(port)))
        self._lock = threading.Lock()
        self._main = threading.get_ident()
        self.calls: queue.Queue[dict[str, Any]] = queue.Queue()
        self.send({"token": self._token, "rank": rank, "pid": os.getpid()})
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _read(self) -> None:
        try:
            for line in self._socket.makefile("rb"):
                self._take(json.loads(line))
        finally:
            # pytest is gone, or done with this pool; the function that runs may never end.
            os._exit(0)

    def _take(self, message: dict[str, Any]) -> None:
        if "where" in message:
            stack = traceback.format_stack(sys._current_frames()[self._main])
            self.send({"kind": "where", "stack": "".join(stack)})
        else:
            self.calls.put(message)


def answer(call: dict[str, Any]) -> dict[str, Any]:
    """The outcome of one call: the result, or the traceback."""
    try:
        function = getattr(importlib.import_module(call["module"]), call["name"])
        result = function(dist.get_rank(), dist.get_world_size(), **call["arguments"])
        json.dumps(result)
    except BaseException:
        return {"kind": "answer", "error": traceback.format_exc()}
    return {"kind": "answer", "result": result}


def make_meshes_once() -> None:
    """Hand out the same mesh for the same question.

    Each has process groups of its own, whose threads look for work a hundred times a second for as
    long as the process lives: by and by they would take the whole machine.
    """
    make = device_mesh.init_device_mesh
    made: dict[str, device_mesh.DeviceMesh] = {}

    def once(*words: Any, **more: Any) -> device_mesh.DeviceMesh:
        asked = repr((words, sorted(more.items())))
        if asked not in made:
            made[asked] = make(*words, **more)
        return made[asked]

    device_mesh.init_device_mesh = once
    dist.init_device_mesh = once  # type: ignore[attr-defined]


def main() -> None:
    torch.set_num_threads(1)
    make_meshes_once()
    dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)
    driver = Driver(dist.get_rank())
    while True:
        driver.send(answer(driver.calls.get()))


if __name__ == "__main__":
    main()
