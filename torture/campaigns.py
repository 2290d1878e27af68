"""Which campaigns are there?"""

from __future__ import annotations

from collections.abc import Sequence

from torture.campaign import Campaign
from torture.crash_replay import CrashReplay
from torture.damage import Damage
from torture.faults import Faults
from torture.fuzzing import Fuzzing
from torture.hangs import Hangs
from torture.hostile import Hostile
from torture.killed_runs import KilledRuns
from torture.kills import Kills
from torture.lost_hosts import LostHosts
from torture.object_faults import ObjectFaults
from torture.power_loss import PowerLoss
from torture.savers import Savers
from torture.simulation import Simulation
from torture.soak import Soak
from torture.state_machine import StateMachine
from torture.syscalls import Syscalls

CAMPAIGNS: Sequence[Campaign] = (
    CrashReplay(),
    PowerLoss(),
    Syscalls(),
    Kills(),
    KilledRuns(),
    Faults(),
    Hangs(),
    LostHosts(),
    Damage(),
    Hostile(),
    Fuzzing(),
    Savers(),
    Simulation(),
    StateMachine(),
    Soak(),
    # Last: a process that has used obstore is not to be forked.
    ObjectFaults(),
)
