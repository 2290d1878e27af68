import pytest
from hypothesis import given, strategies as st

from shardkeep.errors import NotFoundError
from shardkeep.plan.sharing import Reach, SharedRead, Window, broker_of, divide, windows_of

ORIGIN, STRIPE = 3, 8
SPANS = st.lists(st.tuples(st.integers(3, 60), st.integers(1, 20)), max_size=6)
WANTS = st.dictionaries(st.integers(0, 4), st.dictionaries(st.integers(0, 2), SPANS, max_size=3))


def windows(spans_by_file: dict[int, list[tuple[int, int]]]) -> list[Window]:
    return [
        window
        for file, spans in sorted(spans_by_file.items())
        for window in windows_of(
            file, [(a, a + n) for a, n in spans], origin=ORIGIN, stripe_nbytes=STRIPE
        )
    ]


def cells(wanted: list[Window]) -> set[tuple[int, int]]:
    return {(one.file, byte) for one in wanted for byte in range(one.start, one.stop)}


@given(WANTS)
def test_every_wanted_byte_is_read_once_and_reaches_all_who_want_it(wants):
    wanted = {(rank,): windows(files) for rank, files in wants.items()}
    shared = divide(wanted, Reach())

    read = [(one.window.file, b) for one in shared for b in range(*one.window[2:])]
    assert len(read) == len(set(read))
    for (rank,), mine in wanted.items():
        assert cells([one.window for one in shared if rank in one.takers]) == cells(mine)
    assert all(one.reader in one.takers for one in shared)
    assert shared == sorted(shared)


@given(WANTS)
def test_the_brokers_together_decide_about_everything_once(wants):
    members = [0, 1, 2, 3, 4]
    decided: list[SharedRead] = []
    for number, broker in enumerate(members):
        asked = {
            (rank,): [one for one in windows(files) if broker_of(one, members) == broker]
            for rank, files in wants.items()
        }
        decided += divide(asked, Reach(), turn=number)
    whole = divide({(rank,): windows(files) for rank, files in wants.items()}, Reach())
    assert sorted((one.window, one.takers) for one in decided) == [(w, t) for w, _, t in whole]


def test_replicas_share_the_reading_evenly():
    wanted = windows({0: [(3, 8 * 40)]})
    shared = divide({(0, 1, 2, 3): wanted}, Reach())
    loads = [sum(one.window.nbytes for one in shared if one.reader == rank) for rank in range(4)]
    assert loads == [80] * 4


def test_who_has_a_file_at_hand_reads_it_for_the_others():
    reach = Reach({0: (2, 3), 1: (0,)})
    wanted = windows({0: [(3, 8)], 1: [(3, 8)], 2: [(3, 8)]})
    readers = [one.reader for one in divide({(0, 1, 2): wanted}, reach)]
    # Near and wanting; near; far, for want of anything better.
    assert readers[:2] == [2, 0]
    assert readers[2] in (0, 1, 2)


def test_a_rank_reads_what_only_others_want_if_it_alone_has_it():
    (one,) = divide({(0,): windows({0: [(3, 8)]})}, Reach({0: (7,)}, far=False))
    assert (one.reader, one.takers) == (7, (0,))


def test_what_nobody_has_is_an_error():
    with pytest.raises(NotFoundError, match="file 2 of the checkpoint is on no host"):
        divide({(0,): windows({2: [(3, 8)]})}, Reach(far=False))
