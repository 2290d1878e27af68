"""When a rank fails, all others say so. (What dies or stalls: `torture.hangs`.)"""

import re

import pytest

from tests.distributed import cases_checkpoint as cases


@pytest.mark.parametrize(
    ("how", "own", "text"),
    [
        ("unsupported_value", "InvalidError", "plan.*rank 2.*what.*object"),
        ("unsupported_value_async", "InvalidError", "rank 2.*what.*object"),
        ("bad_option", "InvalidError", "plan.*rank 2.*threads"),
        ("unwritable", "InvalidError", "plan.*rank 2.*-file"),
        ("file_damaged_on_one_rank", "CorruptError", "load.*rank 2.*-00002-0"),
        ("file_missing_on_one_rank", "NotFoundError", "load.*rank 2.*-00002-0"),
        ("checkpoint_missing_on_one_rank", "NotFoundError", "load.*2.*-none"),
    ],
)  # fmt: skip
def test_what_fails_on_one_rank_is_raised_on_all(pool4, tmp_path, how, own, text):
    found = pool4.run(cases.failures_of_one_rank, folder=str(tmp_path), how=how)

    others = f"Remote{own}"
    assert [kind for kind, _ in found] == [others, others, own, others], found
    for rank in (0, 1, 3):
        _assert_match(text, found[rank][1])


@pytest.mark.parametrize(
    ("how", "own", "text"),
    [
        ("different_paths", "RanksDisagreeError", "rank 2.*checkpoint-2"),
        ("not_overwritten", "ConflictError", "overwrite=True"),
        ("replicas_differ", "ConflictError", "all.*rank"),
        ("shapes_differ", "RanksDisagreeError", "all.*shape"),
        ("disk_not_shared", "StorageError", "rank 2.*share"),
    ],
)
def test_what_the_chair_finds_is_raised_on_all(pool4, tmp_path, how, own, text):
    found = pool4.run(cases.failures_of_one_rank, folder=str(tmp_path), how=how)

    assert found[0][0] == own, found
    assert [kind for kind, _ in found[1:]] == [f"Remote{own}"] * 3, found
    for _, said in found:
        _assert_match(text, said)


def test_a_failed_async_save_does_not_part_the_ranks(pool4, tmp_path):
    case = cases.an_unseen_failure_does_not_part_the_ranks
    found = pool4.run(case, folder=str(tmp_path))

    assert found[0][0] == "ConflictError"
    assert all("holds a checkpoint already" in said for _, said in found), found


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_jobs_that_save_to_one_path_one_stands_and_the_other_is_told(
    pool4, tmp_path, overwrite
):
    case = cases.two_jobs_save_to_one_path
    found = pool4.run(case, folder=str(tmp_path), overwrite=overwrite)

    for kinds in zip(*[[kind for kind, _ in rounds] for rounds in found], strict=True):
        failed = [bool(kind) for kind in kinds]
        assert failed[0] == failed[1], kinds
        assert failed[2] == failed[3], kinds
        assert not (failed[0] and failed[2]), kinds
        if not overwrite:
            assert failed[0] or failed[2], kinds


def _assert_match(pattern: str, text: str) -> None:
    assert re.search(pattern, text, re.DOTALL), f"{pattern!r} is not in {text!r}"
