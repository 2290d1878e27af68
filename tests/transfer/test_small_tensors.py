"""Do many small tensors come back, whatever their sizes, and from wherever they lie?"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import shardkeep as sk
from shardkeep.boxes import Box
from shardkeep.errors import CorruptError, LayoutError
from shardkeep.layouts import Layout
from shardkeep.plan import Entry
from shardkeep.plan.assign import plan_divisions
from shardkeep.state.restoring import Slot
from shardkeep.transfer.load import ReadRule, fill
from shardkeep.transfer.opened import open_committed
from shardkeep.transfer.outgoing import plan_outgoing
from shardkeep.transfer.planning import tensors_to_write
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.scatter import Scatter
from tests.transfer.worlds import memory

DTYPES = [torch.float32, torch.uint8, torch.int16, torch.complex64, torch.bfloat16, torch.bool]


def cells(number: int, numel: int) -> torch.Tensor:
    """No two tensors alike, no two neighbours alike."""
    dtype = DTYPES[number % len(DTYPES)]
    made = torch.arange(number, number + numel).mul_(40503).remainder_(251)
    return made.to(dtype) if dtype is not torch.bool else made.remainder_(2).to(dtype)


# Of a few bytes, of parts of a block, and across the ends of blocks and of what is read at once.
STATE = {f"t{n}": cells(n, 1 + (n * 7919) % (20_000 if n % 5 else 60_000)) for n in range(300)}


def fresh() -> dict[str, torch.Tensor]:
    return {key: torch.zeros_like(tensor) for key, tensor in STATE.items()}


def assert_same(found: dict[str, torch.Tensor], keys: list[str] | None = None) -> None:
    for key in STATE if keys is None else keys:
        assert torch.equal(found[key], STATE[key]), key


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "checkpoint"
    sk.save(STATE, path, durable=False)
    return path


@pytest.mark.parametrize("threads", [1, 3])
def test_every_byte_comes_back_and_each_block_is_read_once(saved: Path, threads: int):
    state = fresh()
    report = sk.load(saved, into=state, threads=threads)
    data = [file for file in saved.iterdir() if file.suffix == ".safetensors"]

    assert_same(state)
    assert report.nbytes_read <= sum(file.stat().st_size for file in data)


def test_what_is_far_apart_is_read_without_what_lies_between(saved: Path):
    keys, state = ["t5", "t290"], fresh()
    report = sk.load(saved, into=state, keys=keys)

    assert_same(state, keys)
    assert not any(tensor.any() for key, tensor in state.items() if key not in keys)
    assert 0 < report.nbytes_read <= 4 * 256 * 1024


def test_memory_that_has_gaps_stands_beside_memory_that_has_none(saved: Path):
    state = fresh()
    for key in list(state)[::3]:
        state[key] = torch.zeros(len(STATE[key]), 2, dtype=STATE[key].dtype)[:, 0]
    parameter = torch.nn.Parameter(torch.zeros_like(STATE["t6"]))
    sk.load(saved, into={**state, "t6": parameter})

    assert torch.equal(parameter.detach(), STATE["t6"])
    assert_same(state, [key for key in STATE if key != "t6"])


def test_shapes_of_no_and_of_many_dims():
    state = {f"s{n}": torch.full((1,) * n, n + 1.0) for n in range(5)} | {"e": torch.empty(0, 3)}
    found = {key: torch.zeros_like(tensor) for key, tensor in state.items()}
    with memory() as storage:
        sk.save(state, storage)
        sk.load(storage, into=found)
    assert all(torch.equal(found[key], tensor) for key, tensor in state.items())


def test_damage_is_named_and_reaches_no_tensor(tmp_path: Path):
    state = {f"t{n}": torch.full((1024,), n + 1.0) for n in range(600)}
    sk.save(state, tmp_path, durable=False)
    (file,) = tmp_path.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    found = {key: torch.zeros_like(tensor) for key, tensor in state.items()}

    with pytest.raises(CorruptError, match=r"are not what was written \('t\d+', .* and \d+ more\)"):
        sk.load(tmp_path, into=found)
    assert not found["t599"].any()
    sk.load(tmp_path, into=found, verify=False)
    assert torch.equal(found["t598"], state["t598"])
    assert not torch.equal(found["t599"], state["t599"])


def test_a_later_save_of_the_same_kind_has_its_own_values(tmp_path: Path):
    sk.save(STATE, tmp_path / "one", durable=False)
    other = {key: tensor.flip(0) for key, tensor in STATE.items()}
    sk.save(other, tmp_path / "two", durable=False)
    found = fresh()
    sk.load(tmp_path / "two", into=found)

    assert all(torch.equal(found[key], tensor) for key, tensor in other.items())


def test_only_memory_of_the_right_size_is_filled_by_its_address():
    with memory() as storage:
        sk.save({"a": torch.ones(4), "b": torch.ones(6)}, storage)
        opened = open_committed(storage)
        scatter = Scatter.of(opened)
        assert scatter is not None
        record, room = opened.manifest.tensor("a"), torch.zeros(4)
        whole, half = Box((0,), (4,)), Box((0,), (2,))

        too_small = Slot.of(record, whole, room[:2])
        a_part = Slot.of(record, half, room[:2])
        strided = Slot.of(record, whole, torch.zeros(8)[::2])
        assert scatter.take([too_small, a_part, strided]) == [too_small, a_part, strided]
        assert scatter.take([Slot.of(record, whole, room)]) == []
        plans = scatter.plans(ReadRule(), threads=1)
        meter = Meter("loading", None, show=False)
        assert fill(opened, [], threads=1, verify=True, meter=meter, more=plans) == 40
        assert room.tolist() == [1.0] * 4


def test_memory_that_is_too_small_for_its_layout_is_refused():
    entries = {"w": Entry("F32", (8,), Layout.chunked((8,), 0, [0, 1]))}
    layouts = {key: entry.layout for key, entry in entries.items() if entry.layout is not None}
    divisions = plan_divisions(tensors_to_write(entries, layouts), file_count=1)
    outgoing = plan_outgoing(entries, divisions, 1)

    (chunk,) = outgoing.chunks({"w": [torch.arange(6.0)]})
    assert isinstance(chunk.memory, torch.Tensor)
    assert chunk.memory.tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(LayoutError, match=r"'w': this rank's memory has shape \(3,\)"):
        outgoing.chunks({"w": [torch.arange(3.0)]})


def test_a_save_and_a_load_leave_nothing_for_the_collector(saved: Path, tmp_path: Path):
    """What it has to find stays in memory until then, with all tensors that it speaks of."""

    def left_by(act: Callable[[], object]) -> int:
        act()
        gc.collect()
        act()
        return gc.collect()

    state = fresh()
    gc.disable()
    try:
        assert left_by(lambda: sk.load(saved, into=state)) < len(STATE) / 10
        assert left_by(lambda: sk.save(state, tmp_path / "c", overwrite=True)) < len(STATE) / 10
    finally:
        gc.enable()
