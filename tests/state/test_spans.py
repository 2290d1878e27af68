"""Does a compact copy hold every used byte once, in place and aligned?"""

from hypothesis import given, strategies as st

from shardkeep.state.spans import Run, Span, find_loose, has_distinct_places, plan_copy, span_of


@st.composite
def some_spans(draw: st.DrawFn) -> Span:
    itemsize = draw(st.sampled_from((1, 2, 4, 8)))
    start = draw(st.integers(0, 20))
    return Span(start * itemsize, (start + draw(st.integers(1, 6))) * itemsize, itemsize)


def byte_set(spans: list[Span]) -> set[int]:
    return {byte for span in spans for byte in range(span.start, span.stop)}


@given(st.lists(some_spans(), min_size=1, max_size=6))
def test_a_compact_copy_holds_each_used_byte_once(spans):
    plan = plan_copy(spans)
    copied = [run.start + i for run in plan.runs for i in range(run.nbytes)]
    targets = [run.target_start + i for run in plan.runs for i in range(run.nbytes)]
    assert sorted(copied) == sorted(byte_set(spans))
    assert len(set(targets)) == len(targets)
    assert max(targets) < plan.nbytes <= len(copied) + 7 * len(plan.runs)


@given(st.lists(some_spans(), min_size=1, max_size=6))
def test_each_span_lies_in_one_piece_and_aligned(spans):
    plan = plan_copy(spans)
    target_of = {
        run.start + i: run.target_start + i for run in plan.runs for i in range(run.nbytes)
    }
    for span in spans:
        first = plan.target_of(span.start)
        assert first % span.itemsize == 0
        assert [target_of[byte] for byte in range(span.start, span.stop)] == list(
            range(first, first + span.stop - span.start)
        )


@given(st.lists(some_spans(), min_size=1, max_size=6), st.data())
def test_loose_spans_share_no_byte_and_are_mostly_unused(spans, data):
    used = [data.draw(st.integers(1, span.stop - span.start)) for span in spans]
    expected = [
        index
        for index, span in enumerate(spans)
        if 2 * used[index] < span.stop - span.start
        and not byte_set([span]) & byte_set(spans[:index] + spans[index + 1 :])
    ]
    assert sorted(find_loose(spans, used)) == expected


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), max_size=3))
def test_places_that_are_called_distinct_are_so(dims):
    places = [0]
    for n, stride in dims:
        places = [place + i * stride for place in places for i in range(n)]
    if has_distinct_places([n for n, _ in dims], [stride for _, stride in dims]):
        assert len(set(places)) == len(places)


def test_dims_in_any_order_have_distinct_places():
    assert has_distinct_places((2, 3, 4), (1, 8, 2))


def test_bytes_between_runs_are_left_out():
    plan = plan_copy([Span(4_000_000, 4_000_008, 4), Span(0, 8, 4)])
    assert plan.nbytes == 16
    assert plan.runs == (Run(0, 8, 0), Run(4_000_000, 8, 8))


def test_an_expanded_tensor_spans_one_element():
    assert span_of(3, (5, 1), (0, 1), 8) == Span(24, 32, 8)


def test_a_scalar_spans_one_element():
    assert span_of(0, (), (), 2) == Span(0, 2, 2)
