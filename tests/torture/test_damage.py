from collections.abc import Mapping
from unittest.mock import patch

from shardkeep.transfer import read
from torture.damage import Damage, Sample, undetected


def test_every_damage_is_found_and_named() -> None:
    tally = Damage().run("short", 0, print)
    assert tally.cases > 4000
    assert tally.violations == []


def _ignoring_digests(found: Sample, files: Mapping[str, bytes]) -> str | None:
    with patch.object(read, "require_blocks", lambda *_: None):
        return undetected(found, files)


def test_a_reader_that_ignores_digests_is_found_out() -> None:
    assert Damage(_ignoring_digests).run("short", 0, print).violations
