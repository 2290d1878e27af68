import pytest

from torture.power_loss import PowerLoss, cannot_run


@pytest.fixture(scope="module", autouse=True)
def _mounts() -> None:
    if why := cannot_run():
        pytest.skip(why)


def test_what_was_acknowledged_survives_a_loss_of_power() -> None:
    tally = PowerLoss().run("short", 0, print)
    assert tally.violations == []
    assert tally.facts["cycles with an acknowledged save"]


def test_saves_without_fsync_are_found_out() -> None:
    assert PowerLoss(durable=False).run("short", 0, print).violations
