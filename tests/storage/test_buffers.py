from collections.abc import Sequence

from hypothesis import given, strategies as st

from shardkeep.storage.buffers import MAX_BUFFERS_PER_CALL, readable_views, transfer


@given(
    lengths=st.lists(st.integers(0, 9), max_size=30),
    steps=st.lists(st.integers(1, 20), min_size=1),
    offset=st.integers(0, 100),
)
def test_every_byte_is_moved_once_in_order_wherever_calls_stop(
    lengths: list[int], steps: list[int], offset: int
):
    content = bytes(range(sum(lengths)))
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    pieces = [content[a : a + n] for a, n in zip(starts, lengths, strict=True)]
    moved, calls = bytearray(), 0

    def call(views: Sequence[memoryview], position: int) -> int:
        nonlocal calls
        assert position == offset + len(moved)
        piece = b"".join(views)[: steps[calls % len(steps)]]
        calls += 1
        moved.extend(piece)
        return len(piece)

    assert sum(transfer(call, readable_views(pieces), offset)) == len(content)
    assert moved == content


def test_no_call_gets_more_buffers_than_the_system_takes():
    sizes: list[int] = []

    def call(views: Sequence[memoryview], position: int) -> int:
        sizes.append(len(views))
        return sum(view.nbytes for view in views)

    list(transfer(call, readable_views([b"x"] * (2 * MAX_BUFFERS_PER_CALL + 1)), 0))

    assert sizes == [MAX_BUFFERS_PER_CALL, MAX_BUFFERS_PER_CALL, 1]


def test_a_call_that_moves_nothing_ends_it():
    answers = [2, 0]

    assert list(transfer(lambda views, position: answers.pop(0), readable_views([b"abc"]), 0)) == [
        2
    ]
