import copy
import errno
import pickle

import pytest

from shardkeep import errors
from shardkeep.errors import (
    CompanionMismatch,
    ConflictError,
    CorruptError,
    CoverError,
    DeadlineError,
    InvalidError,
    LayoutError,
    NotFoundError,
    RankFailedError,
    RankInputError,
    RanksDisagreeError,
    ShardkeepError,
    StorageError,
    UnsupportedError,
    VersionError,
)

# Handlers and logs depend on these strings: a change here breaks them.
KINDS = {
    ShardkeepError: "error",
    NotFoundError: "not_found",
    ConflictError: "conflict",
    InvalidError: "invalid",
    CorruptError: "corrupt",
    StorageError: "storage",
    DeadlineError: "deadline",
    UnsupportedError: "unsupported",
    VersionError: "version",
    CoverError: "cover",
    LayoutError: "layout",
    CompanionMismatch: "companion_mismatch",
    RanksDisagreeError: "ranks_disagree",
    RankFailedError: "rank_failed",
    RankInputError: "rank_input",
}

BUILTINS = {
    NotFoundError: KeyError,
    ConflictError: ValueError,
    InvalidError: ValueError,
    CorruptError: ValueError,
    StorageError: OSError,
    DeadlineError: TimeoutError,
    UnsupportedError: NotImplementedError,
    VersionError: UnsupportedError,
    CoverError: InvalidError,
    LayoutError: InvalidError,
    CompanionMismatch: ValueError,
    RanksDisagreeError: ConflictError,
    RankFailedError: RuntimeError,
    RankInputError: ValueError,
}

MESSAGE = "'model.wq' is not here:\nlook at 'model.wk'"


def declared_errors() -> set[type]:
    return {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, ShardkeepError)
    }


def example_of(error_type: type[ShardkeepError]) -> ShardkeepError:
    if issubclass(error_type, RankFailedError):
        return error_type({3: "disk full", 1: MESSAGE}, "gather")
    return error_type(MESSAGE)


def test_the_kind_of_every_error_is_fixed():
    assert {error_type: error_type.kind for error_type in KINDS} == KINDS
    assert declared_errors() == set(KINDS)


@pytest.mark.parametrize("error_type", KINDS)
def test_every_error_says_when_it_is_raised(error_type: type[ShardkeepError]):
    assert (error_type.__doc__ or "").startswith("Raised ")


@pytest.mark.parametrize(("error_type", "expected"), BUILTINS.items())
def test_an_error_is_caught_as_the_base_and_as_its_builtin(
    error_type: type[ShardkeepError], expected: type[Exception]
):
    assert issubclass(error_type, ShardkeepError)
    with pytest.raises(expected, match=r"model\.wq"):
        raise example_of(error_type)


PLAIN = [each for each in KINDS if not issubclass(each, RankFailedError)]


@pytest.mark.parametrize("error_type", PLAIN)
def test_the_text_of_an_error_is_its_message(error_type: type[ShardkeepError]):
    assert str(error_type(MESSAGE)) == MESSAGE


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
@pytest.mark.parametrize("error_type", KINDS)
def test_an_error_survives_the_way_to_another_process(error_type: type[ShardkeepError], duplicate):
    error = example_of(error_type)
    error.add_note("seen by rank 0")

    twin = duplicate(error)

    assert type(twin) is error_type
    assert (str(twin), vars(twin)) == (str(error), vars(error))


def test_a_storage_error_keeps_errno_and_path():
    error = StorageError(errno.ENOSPC, "no space left", "ckpt/manifest.json")

    assert (error.errno, error.filename) == (errno.ENOSPC, "ckpt/manifest.json")
    assert type(error) is StorageError
    assert "no space left: 'ckpt/manifest.json'" in str(error)


def test_a_deadline_is_not_a_failure_of_the_storage():
    assert not issubclass(DeadlineError, StorageError)


def test_failed_ranks_are_kept_in_rank_order_with_their_phase():
    error = RankFailedError({7: "late", 2: "disk full"}, phase="reshard")

    assert list(error.failures.items()) == [(2, "disk full"), (7, "late")]
    assert error.phase == "reshard"


def test_failures_do_not_follow_later_changes_of_the_callers_mapping():
    failures = {2: "disk full"}
    error = RankFailedError(failures, "gather")
    failures[3] = "late"

    assert error.failures == {2: "disk full"}


def test_one_failed_rank_is_named_with_its_message():
    assert str(RankFailedError({4: "disk full"}, "gather")) == (
        "gather failed on rank 4\n  rank 4: disk full"
    )


def test_ranks_with_the_same_message_share_a_line():
    error = RankFailedError({9: "late", 0: "disk full", 1: "late", 2: "late", 3: "late"}, "gather")

    assert str(error).splitlines() == [
        "gather failed on ranks 0-3, 9",
        "  rank 0: disk full",
        "  ranks 1-3, 9: late",
    ]


def test_lines_of_a_longer_message_stay_under_their_rank():
    assert str(RankFailedError({0: "two\nlines"}, "gather")).splitlines()[1:] == [
        "  rank 0: two",
        "    lines",
    ]
