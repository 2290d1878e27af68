"""Which attacks are there?"""

from __future__ import annotations

from collections.abc import Sequence

from torture.attacks.attack import Attack
from torture.attacks.data_files import DATA
from torture.attacks.dcp_folders import DCP
from torture.attacks.own_format import OWN
from torture.attacks.safetensors_files import SAFETENSORS
from torture.attacks.torch_files import TORCH

ATTACKS: Sequence[Attack] = (*OWN, *DATA, *SAFETENSORS, *DCP, *TORCH)
