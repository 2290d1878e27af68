import pytest

from torture.lost_hosts import LostHosts
from torture.networks import cannot_network

if why := cannot_network():
    pytest.skip(why, allow_module_level=True)


def test_a_step_comes_back_whole_whichever_host_is_lost() -> None:
    tally = LostHosts().run("short", 0, print)
    assert tally.violations == []
    assert tally.cases >= 6
