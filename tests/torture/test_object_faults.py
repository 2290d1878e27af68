from collections.abc import Callable
from unittest.mock import patch

from shardkeep.storage import object_commit
from torture.object_faults import ObjectFaults
from torture.object_servers import S3Server


def test_nothing_is_lost_through_a_network_that_fails(s3: S3Server) -> None:
    tally = ObjectFaults(s3).run("short", 0, print)
    assert tally.violations == []
    assert tally.cases == 4
    assert tally.facts["fault: lost"]


def test_a_put_that_does_not_look_whether_it_was_carried_out_is_found_out(s3: S3Server) -> None:
    class Forgetful(object_commit._Put):
        def _look_back(self, holds: Callable[[], bool], said: str) -> dict[str, str] | None:
            self._attempt = "somebody else"
            return super()._look_back(holds, said)

    with patch.object(object_commit, "_Put", Forgetful):
        assert ObjectFaults(s3).run("short", 0, print).violations
