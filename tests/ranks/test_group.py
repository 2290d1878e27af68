import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardkeep.errors import InvalidError
from shardkeep.ranks import RankGroup
from shardkeep.testing.thread_ranks import ThreadRanks


@pytest.fixture
def rank_2_of_4():
    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    yield
    dist.destroy_process_group()


def test_a_process_without_a_group_is_rank_0_alone():
    group = RankGroup.of()

    assert (group.ranks, group.me, group.size, group.my_index) == ((0,), 0, 1, 0)
    assert group.messenger is None
    assert group.wire_device == torch.device("cpu")


@pytest.mark.usefixtures("rank_2_of_4")
def test_the_default_group_is_taken_where_none_is_given():
    group = RankGroup.of()

    assert (group.ranks, group.me, group.size) == ((0, 1, 2, 3), 2, 4)


@pytest.mark.usefixtures("rank_2_of_4")
def test_a_subgroup_without_rank_0_has_global_ranks():
    group = RankGroup.of(dist.new_group([3, 2]))

    assert group.me == 2
    assert sorted(group.ranks) == [2, 3]
    assert group.ranks[group.my_index] == 2
    assert [group.ranks[group.index_of(rank)] for rank in (2, 3)] == [2, 3]
    assert 0 not in group


@pytest.mark.usefixtures("rank_2_of_4")
def test_a_rank_outside_a_group_cannot_act_in_it():
    outside = dist.new_group([0, 1])

    with pytest.raises(InvalidError, match="not a member of the process group"):
        RankGroup.of(outside)


@pytest.mark.usefixtures("rank_2_of_4")
def test_a_rank_that_is_not_there_has_no_index():
    with pytest.raises(InvalidError, match=r"rank 7 is not in the group of ranks \[0, 1, 2, 3\]"):
        RankGroup.of().index_of(7)


def test_a_group_that_torch_does_not_know_is_its_own_world(three: ThreadRanks):
    groups = three.run(lambda rank, group: RankGroup.of(group))

    assert [group.me for group in groups] == [0, 1, 2]
    assert {group.ranks for group in groups} == {(0, 1, 2)}


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast_brings_one_ranks_bytes_to_all(three: ThreadRanks, root: int):
    def act(rank, group):
        wire = torch.full((3,), rank + 1, dtype=torch.uint8)
        RankGroup.of(group).broadcast(wire, root)
        return wire.tolist()

    assert three.run(act) == [[root + 1] * 3] * 3
