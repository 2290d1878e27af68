"""A checkpoint of another format becomes one of ours: the part that is wanted, in little memory."""

# torch does not say what it exports.
# pyright: reportPrivateImportUsage=false

import subprocess
import sys
import warnings

import pytest
import safetensors.torch as safetensors
import torch
import torch.distributed.checkpoint as dcp

import shardkeep as sk
from shardkeep.errors import ConflictError, InvalidError, NotFoundError
from tests.distributed.tensors import distinct
from tests.translate.states import assert_equal

warnings.simplefilter("ignore", UserWarning)

STATE = {
    "model": {"w": distinct((4, 6)), "v": distinct((5,), torch.float64)},
    "turned": distinct((4, 6)).t(),
    "rows": torch.empty(0, 3),
    "one": torch.tensor(True),
    "step": 3,
    "groups": [{"lr": 0.5, "betas": (0.9, 0.99)}],
}


@pytest.fixture(params=["dcp", "torch"])
def source(request, tmp_path):
    if request.param == "dcp":
        dcp.save(STATE, checkpoint_id=tmp_path / "dcp")
        return tmp_path / "dcp"
    torch.save(STATE, tmp_path / "state.pt")
    return tmp_path / "state.pt"


def test_all_of_it_is_imported_and_verifies(source, tmp_path):
    result = sk.import_checkpoint(source, tmp_path / "ours", metadata={"from": "elsewhere"})
    assert_equal(sk.load(tmp_path / "ours"), STATE)
    with sk.open(tmp_path / "ours") as checkpoint:
        assert checkpoint.verify().problems == ()
        assert checkpoint.metadata == {"from": "elsewhere"}
        assert (checkpoint.save_id, checkpoint.path) == (result.save_id, result.path)
        assert list(checkpoint["model.w"].mapped().shape) == [4, 6]


def test_a_part_is_imported(source, tmp_path):
    sk.import_checkpoint(source, tmp_path / "ours", keys=["model.*", "groups.0.lr"])
    loaded = sk.load(tmp_path / "ours")
    assert_equal(loaded, {"model": STATE["model"], "groups": [{"lr": 0.5}]})


def test_what_is_imported_gets_other_names(source, tmp_path):
    def rename(key):
        return key.removeprefix("model.") if key.startswith("model.") else None

    sk.import_checkpoint(source, tmp_path / "ours", rename=rename)
    assert_equal(sk.load(tmp_path / "ours"), STATE["model"])


def test_what_is_imported_is_put_below_a_key(tmp_path):
    weights = {"w": distinct((4, 6)), "v": distinct((3,), torch.bfloat16)}
    safetensors.save_file(weights, tmp_path / "model.safetensors")
    sk.import_checkpoint(tmp_path / "model.safetensors", tmp_path / "ours", under="model")
    target = {"model": {key: torch.zeros_like(value) for key, value in weights.items()}}
    sk.load(tmp_path / "ours", into=target)
    assert_equal(target, {"model": weights})
    with sk.open(tmp_path / "ours") as checkpoint:
        assert sorted(checkpoint) == ["model.v", "model.w"]


def test_an_unaligned_file_is_imported(tmp_path):
    """Its header's length is odd, so that no item lies where memory wants it."""
    data = safetensors.save({"w": distinct((50, 7)), "v": distinct((9,), torch.complex64)})
    nbytes = int.from_bytes(data[:8], "little")
    odd = (nbytes + 3).to_bytes(8, "little") + data[8 : 8 + nbytes] + b"   " + data[8 + nbytes :]
    (tmp_path / "odd.safetensors").write_bytes(odd)
    expected = safetensors.load(odd)
    sk.import_checkpoint(tmp_path / "odd.safetensors", tmp_path / "ours")
    assert_equal(sk.load(tmp_path / "ours"), expected)


def test_one_that_is_there_stays_unless_it_is_to_be_replaced(source, tmp_path):
    sk.save({"mine": 1}, tmp_path / "ours")
    with pytest.raises(ConflictError, match="overwrite=True"):
        sk.import_checkpoint(source, tmp_path / "ours")
    assert sk.load(tmp_path / "ours") == {"mine": 1}
    sk.import_checkpoint(source, tmp_path / "ours", overwrite=True)
    assert_equal(sk.load(tmp_path / "ours"), STATE)


def test_what_cannot_be_imported_is_named(source, tmp_path):
    with pytest.raises(NotFoundError, match="keys="):
        sk.import_checkpoint(source, tmp_path / "ours", keys=["nothing"])
    with pytest.raises(ConflictError, match="both be called 'x'"):
        sk.import_checkpoint(source, tmp_path / "ours", rename=lambda key: "x")
    sk.save({"a": 1}, tmp_path / "already")
    with pytest.raises(InvalidError, match="shardkeep copy"):
        sk.import_checkpoint(tmp_path / "already", tmp_path / "ours")
    with pytest.raises(NotFoundError, match="nowhere"):
        sk.import_checkpoint(tmp_path / "nowhere", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


MEASURE = """
import sys, threading, time, warnings
warnings.simplefilter("ignore")
import shardkeep as sk
sk.save({"warm": 1}, sys.argv[2] + "-warm", durable=False)

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

before, peak, done = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not done.is_set():
        peak = max(peak, anonymous())
        time.sleep(0.005)

watcher = threading.Thread(target=watch)
watcher.start()
sk.import_checkpoint(sys.argv[1], sys.argv[2], durable=False)
done.set()
watcher.join()
print(max(peak, anonymous()) - before)
"""


def test_an_import_takes_little_memory_of_its_own(tmp_path):
    """128 MiB pass through; what is mapped of the source is the page cache's."""
    state = {f"w{at}": torch.full((4 * 2**20,), float(at)) for at in range(8)}
    dcp.save(state, checkpoint_id=tmp_path / "dcp")
    arguments = [str(tmp_path / "dcp"), str(tmp_path / "ours")]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 48 * 1024
    with sk.open(tmp_path / "ours") as checkpoint:
        assert checkpoint["w7"][:2].tolist() == [7.0, 7.0]
