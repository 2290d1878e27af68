"""Which campaigns are there?"""

from __future__ import annotations

from collections.abc import Sequence

from torture.campaign import Campaign
from torture.crash_replay import CrashReplay
from torture.damage import Damage
from torture.power_loss import PowerLoss
from torture.savers import Savers

CAMPAIGNS: Sequence[Campaign] = (CrashReplay(), PowerLoss(), Damage(), Savers())
