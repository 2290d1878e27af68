"""When one rank's input is wrong all ranks raise, naming it; when a peer is gone, it is named.

Nobody hangs: the worlds' groups have a deadline, and a test that waits for it fails by its text.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from shardkeep.boxes import Box
from shardkeep.errors import (
    DeadlineError,
    InvalidError,
    RankFailedError,
    RankInputError,
    RanksDisagreeError,
)
from shardkeep.layouts import Layout
from shardkeep.ranks import RankGroup, exchange
from shardkeep.sharded import (
    Shard,
    ShardedTensor,
    ShardingPlan,
    gathering,
    init_from_local_shards,
    shard_module,
    shard_parameter,
    shard_tensor,
)
from shardkeep.testing.layout_strategies import distinct_values
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import chunks, listed, record, sharded

FULL = distinct_values((6, 3))
SPEC = chunks([0, 1, 2])
Errors = dict[str, list[BaseException | None]]
Act = Callable[[bool, Any], object]
"""What a rank does: its input is bad or not, in this group."""


def linear() -> nn.Linear:
    return nn.Linear(3, 6)


def local_shard(rank: int, group_rank: int) -> list[Shard]:
    return [
        Shard(torch.zeros(2, 3), record(rank, Box((2 * group_rank, 0), (2 * group_rank + 2, 3))))
    ]


BAD_INPUT: dict[str, tuple[str, str, Act]] = {
    "gather out": (
        "ShardedTensor.gather",
        "only rank 0 of the group gathers; others must pass out=None",
        lambda bad, g: sharded(FULL, SPEC, g).gather(0, FULL.clone() if bad else None),
    ),
    "gather dst": (
        "ShardedTensor.gather",
        "dst=3 is not a rank of a group of 3",
        lambda bad, g: sharded(FULL, SPEC, g).gather(3 if bad else 0),
    ),
    "reshard goal": (
        "ShardedTensor.reshard",
        "reshard takes a ShardingSpec or a Layout, got str",
        lambda bad, g: sharded(FULL, SPEC, g).reshard("rows" if bad else chunks([0])),  # type: ignore[arg-type]
    ),
    "reshard gap": (
        "ShardedTensor.reshard",
        "is not tiled",
        lambda bad, g: sharded(FULL, SPEC, g).reshard(Layout.chunked((5 if bad else 6, 3), 0, [0])),
    ),
    "reshard replicas": (
        "ShardedTensor.reshard",
        "holds each cell once",
        lambda bad, g: sharded(FULL, SPEC, g).reshard(
            Layout.replicated((6, 3), [0, 1] if bad else [0])
        ),
    ),
    "reshard owner": (
        "ShardedTensor.reshard",
        "owned by rank 7, but the group has ranks",
        lambda bad, g: sharded(FULL, SPEC, g).reshard(chunks([7] if bad else [0])),
    ),
    "fetch box": (
        "ShardedTensor.fetch",
        "does not lie inside a tensor of size",
        lambda bad, g: sharded(FULL, SPEC, g).fetch(Box((0, 0), (9 if bad else 1, 1))),
    ),
    "fetch step": (
        "ShardedTensor.fetch",
        "slices with step 1",
        lambda bad, g: sharded(FULL, SPEC, g).fetch([slice(0, 4, 2 if bad else 1)]),
    ),
    "shard_tensor type": (
        "shard_tensor",
        "only a plain tensor can be sharded, got list",
        lambda bad, g: shard_tensor([1.0] if bad else FULL, SPEC, process_group=g),  # type: ignore[arg-type]
    ),
    "shard_tensor spec": (
        "shard_tensor",
        "expected a ShardingSpec, got str",
        lambda bad, g: shard_tensor(FULL, "rows" if bad else SPEC, process_group=g),  # type: ignore[arg-type]
    ),
    "shard_tensor source": (
        "shard_tensor",
        "src_rank=5 is not a rank of a group of 3",
        lambda bad, g: shard_tensor(FULL, SPEC, 5 if bad else 0, g),
    ),
    "spec.shard size": (
        "shard_tensor",
        "is not tiled",
        lambda bad, g: listed([(0, Box.whole((6, 3)))]).shard(FULL[:5] if bad else FULL, 0, g),
    ),
    "shard_parameter type": (
        "shard_parameter",
        "'in_features' is a int; only tensors can be sharded",
        lambda bad, g: shard_parameter(
            linear(), "in_features" if bad else "weight", SPEC, process_group=g
        ),
    ),
    "shard_module spec": (
        "shard_module",
        "is a ShardingSpec or a Sharder, got NoneType",
        lambda bad, g: shard_module(
            linear(),
            ShardingPlan({"weight": SPEC}, output_plan=None)
            if not bad
            else ShardingPlan({"weight": None}),  # type: ignore[dict-item]
            process_group=g,
        ),
    ),
    "local shard of another rank": (
        "init_from_local_shards",
        "local shard 0 is placed on rank:2/cpu, but it is held by rank 1",
        lambda bad, g: init_from_local_shards(
            local_shard(2 if bad else g.rank(), g.rank()), 6, 3, process_group=g
        ),
    ),
    "no shard": (
        "init_from_local_shards",
        "local_shards is a list of Shard",
        lambda bad, g: init_from_local_shards(
            [FULL] if bad else local_shard(g.rank(), g.rank()),  # type: ignore[list-item]
            6,
            3,
            process_group=g,
        ),
    ),
    "size": (
        "init_from_local_shards",
        "a size is made of ints, got 6.0",
        lambda bad, g: init_from_local_shards(
            local_shard(g.rank(), g.rank()),
            6.0 if bad else 6,  # type: ignore[arg-type]
            3,
            process_group=g,
        ),
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_of_one_rank_raises_on_all_and_names_it(three: ThreadRanks, name: str):
    phase, message, act = BAD_INPUT[name]

    found = three.errors(lambda rank, group: act(rank == 1, group))

    for rank, error in enumerate(found):
        assert isinstance(error, RankInputError if rank != 1 else (RankInputError, TypeError))
        assert f"{phase} failed on rank 1\n" in str(error)
        assert message in str(error)


def test_a_parameter_that_one_rank_lacks_raises_on_all(three: ThreadRanks):
    def act(rank, group):
        shard_parameter(linear(), "weight" if rank else "wait", SPEC, process_group=group)

    found = three.errors(act)

    assert isinstance(found[0], AttributeError)
    assert all(isinstance(error, RankFailedError) for error in found[1:])
    for error in found:
        assert "shard_parameter failed on rank 0" in str(error)
        assert "Linear has no attribute 'wait'" in str(error)


def test_a_bad_gather_leaves_the_tensor_usable(three: ThreadRanks):
    def act(rank, group):
        tensor = sharded(FULL, SPEC, group)
        with pytest.raises(RankInputError, match="others must pass out=None"):
            tensor.gather(0, FULL.clone() if rank == 2 else None)
        return tensor.full_tensor()

    assert all(torch.equal(found, FULL) for found in three.run(act))


DISAGREEMENTS: dict[str, tuple[str, Act]] = {
    "dst": ("ShardedTensor.gather", lambda odd, g: sharded(FULL, SPEC, g).gather(1 if odd else 0)),
    "goal": (
        "ShardedTensor.reshard",
        lambda odd, g: sharded(FULL, SPEC, g).reshard(chunks([0, 1] if odd else [1, 0])),
    ),
    "goal's dim": (
        "ShardedTensor.reshard",
        lambda odd, g: sharded(FULL, SPEC, g).reshard(chunks([0, 1], dim=1 if odd else 0)),
    ),
    "source": ("shard_tensor", lambda odd, g: shard_tensor(FULL, SPEC, 1 if odd else 0, g)),
    "spec": (
        "shard_tensor",
        lambda odd, g: shard_tensor(FULL, chunks([1, 0] if odd else [0, 1]), 0, g),
    ),
    "size": ("shard_tensor", lambda odd, g: shard_tensor(FULL[:3] if odd else FULL, SPEC, 0, g)),
    "dtype": (
        "shard_tensor",
        lambda odd, g: shard_tensor(FULL.double() if odd else FULL, SPEC, 0, g),
    ),
    "grad": (
        "shard_tensor",
        lambda odd, g: shard_tensor(FULL.clone().requires_grad_(odd), SPEC, 0, g),
    ),
    "parameter": (
        "shard_parameter",
        lambda odd, g: shard_parameter(linear(), "bias" if odd else "weight", SPEC, 0, g),
    ),
    "plan": (
        "shard_module",
        lambda odd, g: shard_module(
            linear(), ShardingPlan({"bias" if odd else "weight": SPEC}), 0, g
        ),
    ),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_ranks_that_disagree_all_raise_and_see_both_answers(three: ThreadRanks, name: str):
    phase, act = DISAGREEMENTS[name]

    for error in three.errors(lambda rank, group: act(rank == 2, group)):
        assert isinstance(error, RanksDisagreeError)
        first, *answers = str(error).splitlines()
        assert first == f"{phase}: ranks disagree:"
        assert [answer.split(":")[0] for answer in answers] == ["  ranks 0-1", "  rank 2"]


CROSS_RANK: dict[str, tuple[Callable[[int], list[Shard]], str]] = {
    "dtypes": (
        lambda rank: [
            Shard(
                torch.zeros(2, 3, dtype=[torch.float32, torch.int8][rank == 2]),
                local_shard(rank, rank)[0].metadata,
            )
        ],
        "dtype is float32 on rank 0, but int8 on rank 2",
    ),
    "grads": (
        lambda rank: [
            Shard(torch.zeros(2, 3, requires_grad=rank == 1), local_shard(rank, rank)[0].metadata)
        ],
        "requires_grad is False on rank 0, but True on rank 1",
    ),
    "overlap": (lambda rank: local_shard(rank, min(rank, 1)), r"share [2:4, 0:3]"),
    "gap": (lambda rank: local_shard(rank, rank) if rank != 1 else [], "no box holds [2:4, 0:3]"),
    "nobody": (lambda rank: [], "no rank brings a shard"),
}


@pytest.mark.parametrize("name", CROSS_RANK)
def test_shards_that_do_not_fit_together_are_refused_on_all(three: ThreadRanks, name: str):
    make, message = CROSS_RANK[name]

    for error in three.errors(
        lambda rank, group: init_from_local_shards(make(rank), 6, 3, process_group=group)
    ):
        assert isinstance(error, InvalidError)
        assert message in str(error)


def test_sizes_that_differ_are_named_with_their_ranks(three: ThreadRanks):
    def act(rank, group):
        init_from_local_shards(local_shard(rank, rank), 6 + (rank == 2), 3, process_group=group)

    for error in three.errors(act):
        assert isinstance(error, InvalidError)
        assert "size is [6, 3] on rank 0, but [7, 3] on rank 2" in str(error)


EXCHANGES: dict[str, Callable[[ShardedTensor], object]] = {
    "full_tensor": lambda tensor: tensor.full_tensor(),
    "gather": lambda tensor: tensor.gather(0),
    "reshard": lambda tensor: tensor.reshard(chunks([2, 0, 1])),
    "fetch": lambda tensor: tensor.fetch(Box.whole((6, 3))),
}


def errors_at_once(act: Callable[[str, int, Any], object], timeout: float) -> Errors:
    """What each exchange raised by rank, each in a world of its own: the deadlines run together."""

    def run(name: str) -> list[BaseException | None]:
        world = ThreadRanks(3, timeout=timeout)
        return world.errors(lambda rank, group: act(name, rank, group))

    with ThreadPoolExecutor(len(EXCHANGES)) as pool:
        return dict(zip(EXCHANGES, pool.map(run, EXCHANGES), strict=True))


def test_a_peer_that_dies_in_the_midst_of_an_exchange_is_named():
    """Rank 2 agrees, then is gone before it sends a byte."""

    def ship(group: RankGroup, *args: Any, **options: Any) -> None:
        if group.me == 2:
            raise OSError("killed")
        exchange.ship(group, *args, **options)

    with mock.patch.object(gathering, "ship", ship):
        # Longer than a rank that is well may be late on a busy machine: it would be named too.
        found = errors_at_once(
            lambda name, _, group: EXCHANGES[name](sharded(FULL, SPEC, group)), timeout=3
        )

    for name, (*others, dead) in found.items():
        assert isinstance(dead, OSError)
        waiting = [error for error in others if error is not None]
        assert waiting
        for error in waiting:
            assert isinstance(error, RankFailedError)
            assert list(error.failures) == [2]
            assert f"ShardedTensor.{name} failed on rank 2" in str(error)


def test_nobody_waits_for_a_peer_that_never_comes_beyond_the_deadline():
    found = errors_at_once(
        lambda name, rank, group: rank == 2 or EXCHANGES[name](sharded(FULL, SPEC, group)),
        timeout=0.5,
    )

    for *waiting, absent in found.values():
        assert absent is None
        assert all(isinstance(error, RankFailedError | DeadlineError) for error in waiting)


def test_ranks_that_see_other_boxes_are_told_before_cells_travel(three: ThreadRanks):
    def act(rank: int, group: Any) -> None:
        spec = chunks([2, 1, 0] if rank == 1 else [0, 1, 2])
        ShardedTensor(spec, 6, 3, process_group=group).full_tensor()

    for error in three.errors(act):
        assert isinstance(error, RanksDisagreeError)
        assert "ranks 0, 2: " in str(error)
