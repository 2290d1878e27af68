import copy
import pickle

import pytest
import torch

from shardkeep.errors import InvalidError
from shardkeep.sharded import RemoteDevice


@pytest.mark.parametrize(
    ("text", "rank", "worker", "device"),
    [
        ("rank:0/cpu", 0, None, "cpu"),
        ("rank:12/cuda:3", 12, None, "cuda:3"),
        ("rank:3", 3, None, "cpu"),
        ("trainer0/cpu", None, "trainer0", "cpu"),
        ("trainer0/cuda:1", None, "trainer0", "cuda:1"),
        ("trainer0", None, "trainer0", "cpu"),
        ("cpu", None, None, "cpu"),
        ("cuda:1", None, None, "cuda:1"),
        ("meta", None, None, "meta"),
    ],
)
def test_every_form_is_read(text: str, rank: int | None, worker: str | None, device: str):
    placement = RemoteDevice(text)

    assert placement.rank() == rank
    assert placement.worker_name() == worker
    assert placement.device() == torch.device(device)


def test_a_device_is_a_placement_without_an_owner():
    placement = RemoteDevice(torch.device("cuda:1"))

    assert (placement.rank(), placement.worker_name()) == (None, None)
    assert placement.device() == torch.device("cuda:1")


def test_a_placement_of_a_placement_is_equal():
    assert RemoteDevice(RemoteDevice("rank:1/cpu")) == RemoteDevice("rank:1/cpu")


@pytest.mark.parametrize("text", ["rank:0/cpu/1", "/cpu", "", "rank:0/", "/", "a//cpu"])
def test_what_has_no_owner_or_too_many_parts_is_refused(text: str):
    with pytest.raises(InvalidError, match=r"cannot read placement .*write 'rank:<n>/<device>'"):
        RemoteDevice(text)


@pytest.mark.parametrize("text", ["rank:x/cpu", "rank:-1/cpu", "node:1/cpu", "rank:1:2/cpu", "a:b"])
def test_an_owner_with_a_colon_is_a_rank(text: str):
    with pytest.raises(InvalidError, match=r"cannot read the owner of placement .*'rank:<n>'"):
        RemoteDevice(text)


def test_an_unknown_device_is_torchs_own_error():
    with pytest.raises(RuntimeError, match="device"):
        RemoteDevice("rank:0/gpu5000")


@pytest.mark.parametrize("value", [0, None, ["cpu"], b"cpu"])
def test_what_is_neither_text_nor_device_is_refused(value: object):
    with pytest.raises(TypeError, match=r"a placement is a string or torch\.device, got"):
        RemoteDevice(value)  # type: ignore[arg-type]


def test_placements_are_values():
    made = {RemoteDevice("rank:1/cpu"), RemoteDevice("rank:1/cpu"), RemoteDevice("rank:1")}

    assert len(made) == 1
    assert RemoteDevice("rank:1/cpu") != RemoteDevice("rank:1/cuda:0")
    assert RemoteDevice("rank:1/cpu") != RemoteDevice("cpu")
    assert RemoteDevice("rank:1/cpu") != "rank:1/cpu"


@pytest.mark.parametrize("text", ["rank:1/cuda:0", "worker/cpu", "cpu"])
def test_placements_are_written_as_they_are_read(text: str):
    placement = RemoteDevice(text)

    assert str(placement) == text
    assert repr(placement) == f"RemoteDevice({text!r})"
    assert pickle.loads(pickle.dumps(placement)) == placement
    assert copy.deepcopy(placement) == placement


def test_the_same_owner_on_another_device():
    meta = torch.device("meta")

    assert str(RemoteDevice("rank:1/cpu").on_device(meta)) == "rank:1/meta"
    assert str(RemoteDevice("worker/cpu").on_device(meta)) == "worker/meta"
    assert str(RemoteDevice("cpu").on_device(meta)) == "meta"
    assert RemoteDevice.on_rank(4, "cpu") == RemoteDevice("rank:4/cpu")
