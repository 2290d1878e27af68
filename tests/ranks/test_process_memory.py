"""Memory of another process: all of it comes, or one is told."""

from __future__ import annotations

import os
import sys
from unittest import mock

import pytest
import torch

from shardkeep.ranks import process_memory
from shardkeep.ranks.process_memory import read_memory
from shardkeep.testing.layout_strategies import distinct_values

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets one read")

SOURCE = distinct_values((1000,), torch.int64)


def test_bytes_come_from_one_place_to_another():
    target = torch.zeros_like(SOURCE)

    assert read_memory(os.getpid(), SOURCE.data_ptr(), target.data_ptr(), SOURCE.nbytes)
    assert torch.equal(target, SOURCE)


def test_what_the_kernel_gives_in_parts_is_put_together():
    target = torch.zeros_like(SOURCE)
    read = process_memory._libc.process_vm_readv

    def in_parts(pid, here, here_count, there, there_count, flags):
        for place in (here, there):
            place._obj.nbytes = min(place._obj.nbytes, 3000)
        return read(pid, here, here_count, there, there_count, flags)

    with mock.patch.object(process_memory, "_libc", mock.Mock(process_vm_readv=in_parts)):
        assert read_memory(os.getpid(), SOURCE.data_ptr(), target.data_ptr(), SOURCE.nbytes)
    assert torch.equal(target, SOURCE)


def test_memory_that_is_not_there_cannot_be_read():
    target = torch.zeros(1, dtype=torch.int64)

    assert not read_memory(os.getpid(), 8, target.data_ptr(), 8)
