"""Do transformers and shardkeep read each other's models, bit for bit?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import shardkeep as sk
from tests.distributed.pool import Pool
from tests.translate import cases_hugging_face as cases
from tests.translate.safetensors_tools import assert_same_bits, exported, saved
from tests.translate.tiny_models import KINDS, config_of, from_pretrained, large_config, make

SHARDED = {"max_shard_size": "8KB"}


@pytest.fixture(scope="module")
def pool2() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    make(large_config()).save_pretrained(folder, max_shard_size="6MB")
    return folder


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("options", [{}, SHARDED], ids=["one file", "sharded"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_loads_into_another(tmp_path, kind, options, device):
    model = make(config_of(kind))
    model.save_pretrained(tmp_path, **options)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == bool(options)
    with torch.device(device):
        other = make(config_of(kind), seed=1)
    report = sk.load(tmp_path, into=other)

    assert (report.missing, report.unexpected) == ([], [])
    assert_same_bits(other.state_dict(), model.state_dict())


@pytest.mark.parametrize("options", [{}, {"max_shard_nbytes": 8000}], ids=["one file", "sharded"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_model_is_loaded_by_transformers(tmp_path, kind, options):
    model = make(config_of(kind))
    optim = torch.optim.AdamW(model.parameters())
    ckpt = saved({"model": model, "optim": optim, "step": 5}, tmp_path / "ckpt")
    model.config.save_pretrained(tmp_path / "out")
    report = exported(ckpt, tmp_path / "out", prefix="model.", **options)
    other, info = from_pretrained(tmp_path / "out", output_loading_info=True)

    assert (len(report.files) > 1) == bool(options)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert_same_bits(other.state_dict(), model.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_holds_the_tensors_that_transformers_itself_saves(tmp_path, kind):
    model = make(config_of(kind))
    model.save_pretrained(tmp_path / "theirs")
    exported(saved(model, tmp_path / "ckpt"), tmp_path / "ours")

    assert tensors_of(tmp_path / "ours") == tensors_of(tmp_path / "theirs")


def tensors_of(folder: Path) -> set[str]:
    with sk.open(folder) as opened:
        return set(opened)


def test_an_export_in_bf16_is_the_model_in_bf16(tmp_path):
    model = make(config_of("llama-tied"))
    ckpt = saved({"model": model}, tmp_path / "ckpt")
    model.config.save_pretrained(tmp_path / "out")
    report = exported(ckpt, tmp_path / "out", prefix="model.", dtype="bf16")
    other = from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    wide = make(config_of("llama-tied"), seed=1)
    back = sk.load(tmp_path / "out", into=wide, cast=True)

    assert len(report.cast) == report.tensors
    assert set(back.cast) == set(model.state_dict())
    model.to(torch.bfloat16)
    assert_same_bits(other.state_dict(), model.state_dict())
    assert_same_bits(wide.to(torch.bfloat16).state_dict(), model.state_dict())


def test_a_model_goes_from_transformers_through_an_export_back_to_transformers(tmp_path):
    model = make(config_of("gpt2"))
    model.save_pretrained(tmp_path / "theirs", **SHARDED)
    model.config.save_pretrained(tmp_path / "ours")
    exported(tmp_path / "theirs", tmp_path / "ours")

    assert_same_bits(from_pretrained(tmp_path / "ours").state_dict(), model.state_dict())


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_each_rank_of_fsdp_reads_only_its_shards(pool2, large, device):
    total = sum(one.stat().st_size for one in large.glob("*.safetensors"))
    read = pool2.run(cases.load_in_shards, folder=str(large), way="fsdp", device=device)

    assert all(0.4 * total < nbytes < 0.6 * total for nbytes in read), (read, total)


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
def test_tensor_parallel_shards_are_filled(pool2, large):
    read = pool2.run(cases.load_in_shards, folder=str(large), way="tp", device="cpu")

    total = sum(one.stat().st_size for one in large.glob("*.safetensors"))
    assert all(nbytes < total for nbytes in read), (read, total)


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
@pytest.mark.parametrize("way", ["fsdp", "tp"])
def test_what_sharded_ranks_saved_is_exported_whole(pool2, tmp_path, way):
    pool2.run(cases.save_shards, path=str(tmp_path / "ckpt"), way=way)
    large_config().save_pretrained(tmp_path / "out")
    exported(tmp_path / "ckpt", tmp_path / "out", prefix="model.", max_shard_nbytes=6 * 10**6)

    expected: dict[str, Any] = make(large_config(), seed=1).state_dict()
    assert_same_bits(from_pretrained(tmp_path / "out").state_dict(), expected)
