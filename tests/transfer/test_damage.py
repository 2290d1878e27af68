"""Is every kind of damage found, and named, before a wrong value reaches anyone?"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import shardkeep as sk
from shardkeep.errors import CorruptError, NotFoundError, ShardkeepError
from shardkeep.manifest import MANIFEST_NAME, decode_manifest
from shardkeep.storage import MemoryStorage
from shardkeep.transfer.lazy import Checkpoint
from shardkeep.transfer.open_manifest import Headers
from shardkeep.transfer.opened import open_committed
from tests.transfer.worlds import data_files, memory

STATE = {"w": torch.arange(1, 1025, dtype=torch.float32), "b": torch.arange(1, 300), "n": "text"}


class Bytes:
    """A storage whose bytes a test may change."""

    location = "bytes"

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = {name: bytearray(data) for name, data in files.items()}

    def get(self, key: str, *, max_nbytes: int) -> bytes:
        return bytes(self.files[key])

    def size(self, key: str) -> int:
        return len(self.files[key])

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        return bytes(self.files[key][offset : offset + nbytes])

    def read_into(self, key: str, offset: int, buffers: Any) -> None:
        for buffer in buffers:
            buffer[:] = memoryview(self.files[key])[offset : offset + len(buffer)]
            offset += len(buffer)

    def flip(self, key: str, bit: int) -> None:
        self.files[key][bit // 8] ^= 1 << bit % 8


@pytest.fixture(scope="module")
def saved() -> Iterator[dict[str, bytes]]:
    with memory() as storage:
        sk.save(STATE, storage, metadata={"step": 3})
        yield {**data_files(storage), MANIFEST_NAME: _manifest(storage)}


def _manifest(storage: MemoryStorage) -> bytes:
    return storage.get(MANIFEST_NAME, max_nbytes=2**20)


def data_name(saved: dict[str, bytes]) -> str:
    (name,) = (name for name in saved if name != MANIFEST_NAME)
    return name


def verify(storage: Any) -> tuple[str, ...]:
    return Checkpoint(open_committed(storage), threads=1, owns_storage=False).verify().problems


def test_every_flipped_bit_of_the_manifest_is_found(saved: dict[str, bytes]) -> None:
    data = bytearray(saved[MANIFEST_NAME])
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError, match="manifest"):
            decode_manifest(bytes(data), where=MANIFEST_NAME)
        data[bit // 8] ^= 1 << bit % 8


def test_every_flipped_bit_of_a_header_is_found(saved: dict[str, bytes]) -> None:
    storage, name = Bytes(saved), data_name(saved)
    manifest = decode_manifest(saved[MANIFEST_NAME], where=MANIFEST_NAME)
    header_nbytes = manifest.files[0].header_nbytes
    for bit in range(8 * header_nbytes):
        storage.flip(name, bit)
        with pytest.raises(CorruptError, match=name):
            Headers(storage, manifest)[0]
        storage.flip(name, bit)
    assert Headers(storage, manifest)[0].header_nbytes == header_nbytes


def assert_data_flips_are_found(saved: dict[str, bytes], bits: Iterator[int]) -> None:
    storage, name = Bytes(saved), data_name(saved)
    assert verify(storage) == ()
    checkpoint = Checkpoint(open_committed(storage), threads=1, owns_storage=False)  # type: ignore[arg-type]
    for bit in bits:
        storage.flip(name, bit)
        (problem,) = checkpoint.verify().problems
        assert name in problem
        with pytest.raises(CorruptError, match=name):
            checkpoint["w"].numpy()
        storage.flip(name, bit)


def data_bits(saved: dict[str, bytes]) -> range:
    manifest = decode_manifest(saved[MANIFEST_NAME], where=MANIFEST_NAME)
    record = manifest.files[0]
    return range(8 * record.header_nbytes, 8 * record.nbytes)


def test_flipped_bits_of_the_data_are_found(saved: dict[str, bytes]) -> None:
    """A sample; `make torture` tries them all."""
    bits = data_bits(saved)
    sample = random.Random(7).sample(bits, 200)
    assert_data_flips_are_found(saved, iter([bits[0], *sample, bits[-1]]))


@pytest.mark.torture
def test_every_flipped_bit_of_the_data_is_found(saved: dict[str, bytes]) -> None:
    assert_data_flips_are_found(saved, iter(data_bits(saved)))


Damage = Callable[[Path, list[Path]], str]


def truncate(folder: Path, files: list[Path]) -> str:
    files[0].write_bytes(files[0].read_bytes()[:-1])
    return files[0].name


def truncate_to_nothing(folder: Path, files: list[Path]) -> str:
    files[0].write_bytes(b"")
    return files[0].name


def extend(folder: Path, files: list[Path]) -> str:
    files[0].write_bytes(files[0].read_bytes() + b"\0")
    return files[0].name


def zero_a_block(folder: Path, files: list[Path]) -> str:
    data = bytearray(files[0].read_bytes())
    data[-512:] = bytes(512)
    files[0].write_bytes(data)
    return files[0].name


def swap_two(folder: Path, files: list[Path]) -> str:
    first, second = files[0].read_bytes(), files[1].read_bytes()
    files[0].write_bytes(second)
    files[1].write_bytes(first)
    return files[0].name


def delete(folder: Path, files: list[Path]) -> str:
    files[0].unlink()
    return files[0].name


def link_elsewhere(folder: Path, files: list[Path]) -> str:
    outside = folder.parent / "outside"
    files[0].rename(outside)
    files[0].symlink_to(outside)
    return files[0].name


def cut_the_manifest(folder: Path, files: list[Path]) -> str:
    manifest = folder / MANIFEST_NAME
    manifest.write_bytes(manifest.read_bytes()[:-10])
    return MANIFEST_NAME


def empty_the_manifest(folder: Path, files: list[Path]) -> str:
    (folder / MANIFEST_NAME).write_bytes(b"")
    return MANIFEST_NAME


def delete_the_manifest(folder: Path, files: list[Path]) -> str:
    (folder / MANIFEST_NAME).unlink()
    return MANIFEST_NAME


DAMAGES: list[Damage] = [
    truncate,
    truncate_to_nothing,
    extend,
    zero_a_block,
    swap_two,
    delete,
    link_elsewhere,
    cut_the_manifest,
    empty_the_manifest,
    delete_the_manifest,
]


@pytest.fixture
def two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[Path]]:
    from shardkeep.transfer import planning

    monkeypatch.setattr(planning, "_MIN_NBYTES_FOR_FILES", 0)
    folder = tmp_path / "ckpt"
    sk.save({"w": torch.arange(1, 2049), "v": torch.arange(1, 2049)}, folder, durable=False)
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) == 2
    return folder, files


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_by_name(
    damage: Damage, two_files: tuple[Path, list[Path]]
) -> None:
    folder, files = two_files
    name = damage(folder, files)
    with pytest.raises((CorruptError, NotFoundError)) as found:
        sk.load(folder)
    assert name in str(found.value)
    target = {"w": torch.zeros(2048, dtype=torch.int64), "v": torch.zeros(2048, dtype=torch.int64)}
    with pytest.raises((CorruptError, NotFoundError)) as found:
        sk.load(folder, target)
    assert name in str(found.value)
    try:
        with sk.open(folder) as checkpoint:
            problems = checkpoint.verify().problems
    except ShardkeepError as error:
        problems = (str(error),)
    assert any(name in problem for problem in problems)


def test_an_old_file_in_a_new_ones_place_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    sk.save({"w": torch.arange(10)}, folder, durable=False)
    (old,) = folder.glob("*.safetensors")
    content = old.read_bytes()
    sk.save({"w": torch.arange(1, 11)}, folder, durable=False, overwrite=True)
    (new,) = folder.glob("*.safetensors")
    assert new.name != old.name
    new.write_bytes(content)
    with pytest.raises(CorruptError, match=new.name):
        sk.load(folder)


def test_an_old_manifest_does_not_open_new_files(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    sk.save({"w": torch.arange(10)}, folder, durable=False)
    manifest = (folder / MANIFEST_NAME).read_bytes()
    (old,) = folder.glob("*.safetensors")
    sk.save({"w": torch.arange(1, 11)}, folder, durable=False, overwrite=True)
    (folder / MANIFEST_NAME).write_bytes(manifest)
    with pytest.raises(NotFoundError, match=old.name):
        sk.load(folder)


def test_a_newer_version_is_told_from_damage(tmp_path: Path) -> None:
    from shardkeep.manifest.digests import manifest_digest

    folder = tmp_path / "ckpt"
    sk.save({"w": torch.arange(10)}, folder, durable=False)
    body = (folder / MANIFEST_NAME).read_bytes()[:-45].replace(b'"version":1', b'"version":7', 1)
    text = b'%b,"digest":"%b"}' % (body, manifest_digest(body).encode())
    (folder / MANIFEST_NAME).write_bytes(text)
    with pytest.raises(sk.VersionError, match="version 7"):
        sk.load(folder)
    with pytest.raises(sk.ConflictError, match="overwrite=True"):
        sk.save({"w": torch.zeros(3)}, folder, durable=False)
    sk.save({"w": torch.zeros(3)}, folder, durable=False, overwrite=True)
    assert torch.equal(sk.load(folder)["w"], torch.zeros(3))


def test_a_folder_that_is_no_checkpoint_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(NotFoundError, match=r"holds no checkpoint: there is no manifest\.json"):
        sk.load(tmp_path)
    with pytest.raises(NotFoundError, match="nowhere"):
        sk.open(tmp_path / "nowhere")
