"""Remote shards through torch RPC."""

from tests.distributed import cases_rpc


def test_every_rank_reads_every_other_ranks_shards_through_rpc(fresh_pool4):
    fresh_pool4.run(cases_rpc.every_rank_reads_every_other_ranks_shards)
