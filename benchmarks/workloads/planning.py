"""W5: does planning a save or load stay cheap when the job grows?

Ranks are simulated: one process plans what one rank of the job, or its coordinator, would. Times
are CPU seconds of a first plan, with nothing cached. PyTorch's planner meets the same tensors.
"""

import time
from collections.abc import Sequence

from benchmarks.asked import Asked
from benchmarks.figures import DCP, OURS, Figure
from benchmarks.planned_models import PARALLELISMS, TENSORS, Parallelism, forget, view_of
from benchmarks.planning_crowd import commit_seconds
from benchmarks.planning_dcp import plan_as_dcp
from benchmarks.planning_load import load_seconds
from benchmarks.ranks import on_ranks
from shardkeep.manifest import chunk_name
from shardkeep.plan import digest_view
from shardkeep.plan.assign import plan_divisions
from shardkeep.plan.settle import settle
from shardkeep.transfer.agreement import decode_agreement, encode_agreement, make_agreement
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.planning import tensors_to_write
from shardkeep.transfer.view_codec import encode_save_view

NAME = "W5"
TITLE = f"Planning, {TENSORS:,} tensors on simulated ranks, CPU time"
RANKS = (8, 64, 512, 4096, 16384)
# The coordinator is a rank, too: in smaller jobs its own part of the model would not fit here.
CROWD = 16384
DCP_RANKS = (64, 256, 1024)
SAVE, LOAD = "plan a save, one rank", "plan a load 2:1, one rank"
COORDINATOR, MANIFEST = "coordinate a save", "manifest"


def setting_of(parallelism: str, ranks: int) -> str:
    return f"{parallelism}, {ranks:,} ranks"


def run(asked: Asked) -> list[Figure]:
    """Of all parallelisms; DCP's of FSDP alone."""
    turns = asked.turns(15, 1)
    sizes = (RANKS[0], RANKS[-1]) if asked.quick else RANKS
    dcp_sizes = DCP_RANKS[:1] if asked.quick else DCP_RANKS
    figures: list[Figure] = []
    if asked.wants(OURS):
        for how in PARALLELISMS:
            if asked.has(how.name):
                # A process of its own: nothing is left of the plans before.
                (found,) = on_ranks(1, lambda how=how: _measure(how, sizes, turns))
                figures += found
    if asked.wants(DCP) and asked.has("FSDP"):
        for ranks in dcp_sizes:
            (found,) = on_ranks(1, lambda ranks=ranks: _measure_dcp(ranks))
            figures += found
    return figures


def _measure(how: Parallelism, sizes: Sequence[int], repetitions: int) -> list[Figure]:
    """Sizes take turns: what else the machine does meets all of them."""
    saves: dict[int, list[float]] = {ranks: [] for ranks in sizes}
    loads: dict[int, list[float]] = {ranks: [] for ranks in sizes}
    for _ in range(repetitions):
        for ranks in sizes:
            saves[ranks].append(_plan_one_rank(how, ranks))
            loads[ranks].append(load_seconds(how, ranks))
    made = [
        Figure(NAME, setting_of(how.name, ranks), act, OURS, tuple(spent[ranks]))
        for act, spent in ((SAVE, saves), (LOAD, loads))
        for ranks in sizes
    ]
    commits = [commit_seconds(how, CROWD) for _ in range(min(3, repetitions))]
    seconds, nbytes = (tuple(map(float, column)) for column in zip(*commits, strict=True))
    setting = setting_of(how.name, CROWD)
    return [
        *made,
        Figure(NAME, setting, COORDINATOR, OURS, seconds),
        Figure(NAME, setting, MANIFEST, OURS, nbytes, "bytes"),
    ]


def _measure_dcp(ranks: int) -> list[Figure]:
    found, setting = plan_as_dcp(ranks), setting_of("FSDP", ranks)
    return [
        Figure(NAME, setting, COORDINATOR, DCP, (found.seconds,)),
        Figure(NAME, setting, MANIFEST, DCP, (float(found.metadata_nbytes),), "bytes"),
    ]


def _plan_one_rank(how: Parallelism, ranks: int) -> float:
    """CPU seconds of all that one rank computes before it writes."""
    note, me = _agreement(how, ranks), ranks // 3
    mesh = how.mesh(ranks)
    forget()
    start = time.process_time()
    # As a save does.
    with gc_paused():
        entries = how.entries(mesh)
        view = view_of(entries)
        digest = digest_view(encode_save_view(view)).hex()
        agreement = decode_agreement(note)
        layouts = agreement.layouts(view, digest)
        divided = plan_divisions(
            tensors_to_write(entries, layouts), file_count=agreement.file_count
        )
        names = [
            chunk_name(key, chunk.box, entries[key].shape)
            for key, division in divided.items()
            for chunk in division.chunks_of(me)
        ]
    seconds = time.process_time() - start
    if len(names) < TENSORS // 8:
        raise AssertionError(f"rank {me} of {ranks} writes {len(names)} chunks only")
    return seconds


def _agreement(how: Parallelism, ranks: int) -> bytes:
    view = view_of(how.entries(how.mesh(ranks)))
    digest = digest_view(encode_save_view(view)).hex()
    everyone = range(ranks)
    settlement = settle([(view, everyone)])
    return encode_agreement(make_agreement("0" * 16, 2, [digest], [everyone], settlement))
