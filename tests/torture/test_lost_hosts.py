from typing import Any
from unittest.mock import patch

import pytest

from shardkeep.manifest import decode_summary
from shardkeep.transfer import tiered_choice
from shardkeep.transfer.inventory import Inventory, locate
from torture.lost_hosts import LostHosts
from torture.networks import cannot_network

if why := cannot_network():
    pytest.skip(why, allow_module_level=True)


def test_a_step_comes_back_whole_whichever_host_is_lost() -> None:
    tally = LostHosts().run("short", 0, print)
    assert tally.violations == []
    assert tally.cases >= 6


def _careless(inventory: Inventory, manifests: Any, slow: Any) -> Any:
    """Takes every file to be there."""
    for save, data in manifests.items():
        for file in decode_summary(data, where="manifest").files:
            held = inventory.holders.setdefault(save, {})
            held.setdefault((file.rank, file.number, file.nbytes), [0])
    return locate(inventory, manifests, slow)


def test_a_restore_that_does_not_look_for_the_files_is_found_out() -> None:
    with patch.object(tiered_choice, "locate", _careless):
        tally = LostHosts().run("short", 0, print, "kill:host-1:before-the-copies:fresh")
    (found,) = tally.violations
    assert "the restore fails" in found
