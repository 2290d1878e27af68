"""Checkpoints of real ranks: any parallelism and world size in, any out, bit for bit."""

from pathlib import Path

import pytest

import shardkeep as sk
from tests.distributed import cases_checkpoint as cases
from tests.distributed.cases_models import Model
from tests.distributed.parallelisms import HIDDEN, WIDTH, expected_state, ways
from tests.distributed.tensors import assert_same

FOUR, THREE, PAIRS = [[0, 1, 2, 3]], [[0, 1, 2]], [[0, 1], [2, 3]]


@pytest.fixture(scope="module")
def of_four(pool4, tmp_path_factory) -> list[str]:
    """Checkpoints that 4 ranks saved, one for each parallelism."""
    folder = tmp_path_factory.mktemp("of_four")
    pool4.run(cases.save_in_every_way, folder=str(folder), groups=FOUR)
    return [str(path) for path in sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def of_few(pool4, tmp_path_factory) -> list[str]:
    """Checkpoints of 2 ranks, also without rank 0, and of 1."""
    folder = tmp_path_factory.mktemp("of_few")
    pool4.run(cases.save_in_every_way, folder=str(folder), groups=PAIRS)
    sk.save(expected_state(), folder / "one")
    return [str(path) for path in sorted(folder.iterdir())]


def test_saved_on_four_loaded_on_four(pool4, of_four):
    counts = pool4.run(cases.load_into_every_way, paths=of_four, groups=FOUR)

    assert counts == [8 * 8] * 4


def test_saved_on_four_loaded_on_three(pool3, of_four):
    counts = pool3.run(cases.load_into_every_way, paths=of_four, groups=THREE)

    assert counts == [8 * 6] * 3


def test_saved_on_four_loaded_on_two_with_and_without_rank_0(pool4, of_four):
    counts = pool4.run(cases.load_into_every_way, paths=of_four, groups=PAIRS)

    assert counts == [8 * 8] * 4


def test_saved_on_two_and_one_loaded_on_four(pool4, of_few):
    counts = pool4.run(cases.load_into_every_way, paths=of_few, groups=FOUR)

    assert counts == [len(of_few) * 8] * 4


def test_saved_on_four_two_and_one_loaded_on_one(of_four, of_few):
    expected = expected_state()
    for path in (*of_four, *of_few):
        model = Model(WIDTH, HIDDEN)

        plain = sk.load(path)
        sk.load(path, into=model)

        assert plain.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(plain[key], value)
            assert_same(model.state_dict()[key], value)
        assert model.head.weight is model.embedding.weight
        with sk.open(path) as checkpoint:
            assert checkpoint.verify(), path


@pytest.mark.parametrize("way", ["fsdp", "hsdp", "tp", "fsdp_tp"])
def test_a_model_on_the_meta_device_takes_a_checkpoint(pool4, of_four, way):
    pool4.run(cases.a_meta_model_takes_a_checkpoint, path=of_four[0], way=way)


def test_the_ways_are_what_they_are_said_to_be(of_four):
    assert [Path(path).name for path in of_four] == sorted(f"0+1+2+3-{way}" for way in ways(4))
    files = {path: len(list(Path(path).glob("*.safetensors"))) for path in of_four}
    assert set(files.values()) <= {3, 4}, files


def test_async_saves_beside_a_training_loop_keep_the_state_at_their_call(pool4, tmp_path):
    beside = pool4.run(cases.async_saves_beside_training, folder=str(tmp_path))

    assert min(beside) > 0, "no save was ever under way during a collective of the loop"


def test_saves_and_loads_call_no_collective(pool4, tmp_path):
    pool4.run(cases.a_save_calls_no_collective, folder=str(tmp_path))


def test_no_keys_are_left_in_the_store(pool4, tmp_path):
    pool4.run(cases.no_keys_are_left, folder=str(tmp_path))


def test_torch_sharded_tensors_are_kept(pool4, tmp_path):
    case = cases.torch_sharded_tensors_are_kept
    for rows in (3, 7):  # on the last rank: no row, one row
        assert pool4.run(case, path=str(tmp_path / str(rows)), rows=rows) == [""] * 4
