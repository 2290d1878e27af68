"""Each byte is fetched once, however many ranks want it."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

import shardkeep as sk
from benchmarks.server_load import ServerLoad
from tests.distributed import cases_checkpoint, cases_sharing as cases


@pytest.fixture(scope="module")
def saved(pool4, tmp_path_factory) -> dict[str, tuple[str, int]]:
    """Path and bytes of a checkpoint of each parallelism."""
    folder = tmp_path_factory.mktemp("sharing")
    found: dict[str, tuple[str, int]] = {}
    for way in ("ddp", "hsdp", "fsdp", "sharded"):
        path = str(folder / way)
        found[way] = path, pool4.run(cases.save, path=path, way=way)[0]
    return found


@pytest.mark.parametrize(("way", "share"), [("ddp", "auto"), ("hsdp", "auto"), ("fsdp", "job")])
def test_all_ranks_together_fetch_what_is_stored(pool4, saved, way, share):
    path, stored = saved[way]
    found = pool4.run(cases.load, path=path, way=way, share=share)

    assert sum(fetched for fetched, _, _ in found) == stored
    assert [fetched for fetched, _, _ in found] == [read for _, read, _ in found]
    if way == "ddp":
        assert [read + received for _, read, received in found] == [stored] * 4
        assert max(read for _, read, _ in found) < 0.5 * stored


@pytest.mark.parametrize("way", ["ddp", "columns"])
def test_ranks_of_one_host_share_memory_where_they_may(pool4, saved, way):
    how = {"path": saved["ddp"][0], "way": way}
    assert all(pool4.run(cases.load_from_neighbours, **how, can_map=True))
    assert not any(pool4.run(cases.load_from_neighbours, **how, can_map=False))


def test_files_are_read_once_where_ranks_would_read_much_in_vain(pool4, saved):
    path, stored = saved["fsdp"]
    found = pool4.run(cases.load_files, path=path, way="columns", min_waste=0)
    assert sum(read for read, _ in found) < 1.05 * stored
    assert all(received for _, received in found)


@pytest.mark.parametrize(("way", "min_waste"), [("columns", 2**30), ("ddp", 0), ("fsdp", 0)])
def test_files_are_read_by_each_rank_where_little_is_in_vain(pool4, saved, way, min_waste):
    path, _ = saved["ddp"]
    found = pool4.run(cases.load_files, path=path, way=way, min_waste=min_waste)
    assert [received for _, received in found] == [0] * 4


def test_files_are_read_once_by_those_who_see_each_others_memory(pool4, saved):
    path, stored = saved["fsdp"]
    found = pool4.run(cases.load_files_of_users, path=path, ranks_each=2)
    for pair in (found[:2], found[2:]):
        assert 0.9 * stored < sum(read for read, _ in pair) < 1.05 * stored
        assert all(received for _, received in pair)


@pytest.mark.parametrize(("ranks_each", "alone"), [(1, [0, 1, 2, 3]), (3, [3])])
def test_who_sees_nobodys_memory_reads_all_by_itself(pool4, saved, ranks_each, alone):
    path, stored = saved["fsdp"]
    found = pool4.run(cases.load_files_of_users, path=path, ranks_each=ranks_each)
    for rank, (read, received) in enumerate(found):
        assert (received == 0) == (rank in alone)
        assert (read > 0.9 * stored) == (rank in alone)


@pytest.mark.parametrize("way", ["fsdp", "sharded"])
def test_ranks_that_want_little_in_common_read_by_themselves(pool4, saved, way):
    path, stored = saved[way]
    found = pool4.run(cases.load_without_wire, path=path, way=way)

    assert [received for _, _, received in found] == [0] * 4
    # Blocks that lie on a border are read on both sides of it.
    assert sum(fetched for fetched, _, _ in found) < 1.2 * stored


@pytest.mark.parametrize("share", ["job", "host"])
def test_what_each_rank_wants_for_itself_passes_through_no_other(pool4, saved, share):
    path, stored = saved["sharded"]
    found = pool4.run(cases.load, path=path, way="sharded", share=share)

    assert [received for _, _, received in found] == [0] * 4
    assert sum(fetched for fetched, _, _ in found) == stored


def test_only_what_two_ranks_want_passes_through_the_group(pool4, saved):
    path, stored = saved["fsdp"]
    found = pool4.run(cases.load, path=path, way="fsdp", share="job")

    # The plain tensors are about 100 KB; a block that has a part of them is 256 KiB.
    assert 0 < sum(received for _, _, received in found) < 0.2 * stored


def test_who_alone_has_the_files_reads_for_those_who_want_more(pool4, saved):
    path, stored = saved["ddp"]
    found = pool4.run(cases.load_what_is_on_rank_3, path=path)

    assert [read for read, _ in found[:3]] == [0] * 3
    assert found[3][1] == 0
    assert all(received >= stored for _, received in found[:3])


def test_ranks_that_are_in_different_numbers_of_groups_share(pool4, saved):
    path, stored = saved["ddp"]
    found = pool4.run(cases.load_beside_groups_of_few, path=path)
    assert sum(fetched for fetched, _, _ in found) == stored


def test_without_sharing_every_rank_fetches_all(pool4, saved):
    path, stored = saved["ddp"]
    found = pool4.run(cases.load, path=path, way="ddp", share="none")

    assert all(fetched >= stored for fetched, _, _ in found)
    assert [received for _, _, received in found] == [0] * 4


@pytest.mark.parametrize(("source", "way"), [("ddp", "columns"), ("hsdp", "ddp"), ("fsdp", "hsdp")])
def test_into_another_layout_no_byte_is_fetched_twice(pool4, saved, source, way):
    path, stored = saved[source]
    found = pool4.run(cases.load, path=path, way=way, share="job")

    assert sum(fetched for fetched, _, _ in found) <= stored


def test_each_host_fetches_once_by_itself(pool4, saved):
    path, stored = saved["ddp"]
    found = [fetched for fetched, _, _ in pool4.run(cases.load_from_two_hosts, path=path)]

    assert found[0] + found[1] == found[2] + found[3] == stored


def test_ranks_that_take_more_turns_and_little_memory_share_as_well(pool4, saved):
    path, stored = saved["ddp"]
    found = pool4.run(cases.load_little_at_a_time, path=path)

    # Who stages asks again for blocks that lie on a border between two turns.
    assert stored <= sum(fetched for (fetched,) in found) < 4 * stored


def test_what_one_rank_finds_damaged_all_raise_and_can_share_again(pool4, saved, tmp_path):
    good, _ = saved["ddp"]
    bad = str(tmp_path / "bad")
    pool4.run(cases.save, path=bad, way="ddp")
    data = max(Path(bad).glob("*.safetensors"), key=lambda one: one.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)

    for kind, _, text in pool4.run(cases.load_damaged, path=bad, good=good):
        assert "Corrupt" in kind or "RankFailed" in kind
        assert data.name in text
        assert "not what was written" in text


def test_a_state_that_does_not_fit_on_one_rank_is_heard_by_all(pool4, saved):
    for text in pool4.run(cases.load_unfit, path=saved["ddp"][0]):
        assert "norm" in text


def test_any_parallelism_into_any_other_shared(pool4, tmp_path):
    pool4.run(cases_checkpoint.save_in_every_way, folder=str(tmp_path), groups=[[0, 1, 2, 3]])
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    assert pool4.run(cases.load_every_way, paths=paths) == [8 * 8] * 4


@pytest.mark.parametrize("way", ["ddp", "sharded"])
def test_an_object_store_sends_each_byte_once(pool4, s3, way):
    place = {"url": s3.url(f"sharing/{uuid4().hex}"), "options": s3.options, "way": way}
    stored = pool4.run(cases.save_to_store, **place)[0]
    manifest = sk.ObjectStorage(place["url"], **s3.options).size("manifest.json")
    before = ServerLoad.of(s3)

    found = pool4.run(cases.load_from_store, **place)

    sent = ServerLoad.of(s3).since(before).sent_nbytes
    assert sent == stored + 4 * manifest
    if way == "ddp":
        assert sum(read for read, _ in found) == stored
        assert [read + received for read, received in found] == [stored] * 4
    else:
        assert [received for _, received in found] == [0] * 4
