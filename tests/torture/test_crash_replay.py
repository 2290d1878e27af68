import pytest

from torture.crash_replay import (
    CrashReplay,
    Mutation,
    committed_early,
    recycled_early,
    without_file_syncs,
    without_folder_syncs,
)


def test_a_folder_opens_as_old_or_new_after_any_loss_of_power() -> None:
    tally = CrashReplay().run("short", 0, print)
    assert tally.cases >= 2000
    assert tally.violations == []


def test_files_that_are_written_again_too_early_are_found_out() -> None:
    found = CrashReplay(recycled_early).run("short", 0, print).violations
    assert found
    assert all("--case recycle:" in one for one in found)


@pytest.mark.parametrize("mutation", [without_file_syncs, without_folder_syncs, committed_early])
def test_a_protocol_with_a_step_left_out_is_found_out(mutation: Mutation) -> None:
    assert CrashReplay(mutation).run("short", 0, print).violations
