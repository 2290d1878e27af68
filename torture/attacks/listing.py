"""Which attacks are there?"""

from __future__ import annotations

from collections.abc import Sequence

from torture.attacks.attack import Attack
from torture.attacks.data_files import DATA
from torture.attacks.own_format import OWN

ATTACKS: Sequence[Attack] = (*OWN, *DATA)
