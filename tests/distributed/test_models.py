"""FSDP2, HSDP, TP and FSDP over TP: state dicts come and go bit for bit, on 4 and 3 ranks."""

import pytest

from tests.distributed import cases_models as cases

EVEN, UNEVEN = {"width": 8, "hidden": 16}, {"width": 5, "hidden": 7}
SIZES = pytest.mark.parametrize("sizes", [EVEN, UNEVEN], ids=["even", "uneven"])
ON_FOUR = pytest.mark.parametrize("way", ["fsdp", "hsdp", "tp", "fsdp_tp"])
ON_THREE = pytest.mark.parametrize("way", ["fsdp", "tp"])


@pytest.mark.parametrize(
    ("way", "kinds"),
    [
        ("fsdp", ["Shard", "plain"]),
        ("hsdp", ["Replicate", "Shard", "plain"]),
        ("tp", ["Shard", "plain"]),
        ("fsdp_tp", ["Shard", "_StridedShard", "plain"]),
    ],
)
def test_the_models_have_the_placements_that_are_meant(pool4, way, kinds):
    found = pool4.run(cases.kinds_of_placements, way=way, **UNEVEN)

    assert found == [kinds] * 4


@SIZES
@ON_FOUR
def test_gather_gives_the_model_before_it_was_sharded(pool4, way, sizes):
    pool4.run(cases.gather_gives_the_model_before_it_was_sharded, way=way, **sizes)


@SIZES
@ON_THREE
def test_gather_on_three_ranks_gives_the_model_before_it_was_sharded(pool3, way, sizes):
    pool3.run(cases.gather_gives_the_model_before_it_was_sharded, way=way, **sizes)


@SIZES
@ON_FOUR
def test_broadcast_gives_the_sharded_model(pool4, way, sizes):
    pool4.run(cases.broadcast_gives_the_sharded_model, way=way, **sizes)


@SIZES
@ON_THREE
def test_broadcast_on_three_ranks_gives_the_sharded_model(pool3, way, sizes):
    pool3.run(cases.broadcast_gives_the_sharded_model, way=way, **sizes)


@SIZES
@ON_FOUR
def test_distribute_gives_the_sharded_model(pool4, way, sizes):
    pool4.run(cases.distribute_gives_the_sharded_model, way=way, **sizes)


@SIZES
@ON_THREE
def test_distribute_on_three_ranks_gives_the_sharded_model(pool3, way, sizes):
    pool3.run(cases.distribute_gives_the_sharded_model, way=way, **sizes)


@ON_FOUR
def test_a_model_on_the_meta_device_takes_the_broadcast_state(pool4, way):
    pool4.run(cases.a_meta_model_takes_the_broadcast_state, way=way, **UNEVEN)


@ON_FOUR
def test_the_optimizers_state_comes_and_goes(pool4, way):
    pool4.run(cases.optimizer_state_comes_and_goes, way=way, **UNEVEN)
