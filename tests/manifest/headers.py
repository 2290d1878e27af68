"""Which headers of data files do the tests try, and how are they forged?"""

from __future__ import annotations

from hypothesis import strategies as st

from shardkeep.manifest import EntrySpec, HeaderPlan, Node, ValueNode, plan_header
from shardkeep.manifest.dtypes import STORED_ITEMSIZES
from shardkeep.testing.box_strategies import shapes
from tests.manifest.examples import SAVE_ID, texts

ENTRIES: list[EntrySpec] = [("w@[0:2,0:3]", "F32", (2, 3), 24), ("b", "I16", (4,), 8)]
DATA_NBYTES = 32


def plan(
    entries: list[EntrySpec] = ENTRIES,
    *,
    save_id: str = SAVE_ID,
    rank: int = 3,
    number: int = 0,
    block_nbytes: int = 4096,
    data_nbytes: int | None = None,
    per_rank: dict[str, Node] | None = None,
) -> HeaderPlan:
    total = sum([nbytes for *_, nbytes in entries])
    return plan_header(
        entries,
        save_id=save_id,
        rank=rank,
        number=number,
        block_nbytes=block_nbytes,
        data_nbytes=total if data_nbytes is None else data_nbytes,
        per_rank={"rng": ValueNode(7)} if per_rank is None else per_rank,
    )


def encoded() -> bytes:
    return plan().encode([2**64 - 2])


def forged(data: bytes, old: str, new: str) -> bytes:
    """A header with its padding in order in which some text was replaced."""
    assert data.count(old.encode()) == 1, old
    return padded(data[8:].rstrip(b" ").replace(old.encode(), new.encode()))


def padded(text: bytes) -> bytes:
    nbytes = -(-(8 + len(text)) // 4096) * 4096
    return (nbytes - 8).to_bytes(8, "little") + text.ljust(nbytes - 8)


@st.composite
def entry_lists(draw: st.DrawFn) -> list[EntrySpec]:
    names = draw(
        st.lists(texts.filter(lambda name: name != "__metadata__"), max_size=6, unique=True)
    )
    made: list[EntrySpec] = []
    for name in names:
        dtype, shape = draw(st.sampled_from(sorted(STORED_ITEMSIZES))), draw(shapes())
        nbytes = STORED_ITEMSIZES[dtype]
        for n in shape:
            nbytes *= n
        made.append((name, dtype, shape, nbytes))
    return sorted(made, key=lambda entry: -STORED_ITEMSIZES[entry[1]])
