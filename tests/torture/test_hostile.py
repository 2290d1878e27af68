"""Is every hostile folder refused, and would a careless reader be found out?"""

from __future__ import annotations

from torture.attacks.__main__ import README, listing
from torture.attacks.attack import HARMLESS
from torture.attacks.listing import ATTACKS
from torture.hostile import Hostile


def test_every_attack_is_refused_for_its_reason_and_does_nothing() -> None:
    tally = Hostile().run("short", 0, print)
    assert tally.violations == []
    assert tally.cases > 500
    # The hook was armed: it saw the folders' own files being opened.
    assert int(str(tally.facts["files opened"])) > tally.cases


def test_there_are_attacks_on_every_format_and_each_has_a_name_of_its_own() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(set(names)) == len(names)
    refused = [attack.format for attack in ATTACKS if attack.error != HARMLESS]
    assert {one: refused.count(one) > 30 for one in refused} == dict.fromkeys(
        ("own", "safetensors", "hf", "dcp", "torch"), True
    )


def test_the_list_of_attacks_is_the_present_one() -> None:
    assert README.read_text() == listing()


MISTAKES = {
    "dcp/metadata-system": "it caused pickle.find_class",
    "own/manifest-link-to-passwords": "it caused open /etc/passwd",
    "own/shape-larger-than-data": "bytes of memory",
    "own/manifest-empty": "load raised undeclared ValueError",
    "own/other-format": "expected CorruptError with 'not a file of the format'",
    "own/data-flipped": "load accepted it",
}


def test_a_careless_reader_is_found_out() -> None:
    chosen = [one for one in ATTACKS if one.name in MISTAKES or one.name == "own/sound"]
    tally = Hostile("tests.torture.careless_reader", chosen).run("short", 0, print)
    for name, mistake in MISTAKES.items():
        assert [line for line in tally.violations if line.startswith(name) and mistake in line]
    assert [line for line in tally.violations if line.startswith("code was run")]
    assert not [line for line in tally.violations if line.startswith("own/sound")]
