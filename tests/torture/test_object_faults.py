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
        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            self._attempt = "whose?"

        def _try(self, mode: object, holds: object) -> object:  # type: ignore[override]
            self._attempt += "?"
            return super()._try(mode, holds)  # type: ignore[arg-type]

    with patch.object(object_commit, "_Put", Forgetful):
        assert ObjectFaults(s3).run("short", 0, print).violations
