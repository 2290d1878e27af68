"""How many examples does a property try: as many as it says, or a campaign's worth?"""

from __future__ import annotations

import os

_CAMPAIGN = 20


def examples(count: int) -> int:
    """`count` in a normal run, twenty times as many when SHARDKEEP_TORTURE is set.

    For a property that sets `max_examples` itself, which a hypothesis profile cannot raise.
    """
    return count * _CAMPAIGN if os.environ.get("SHARDKEEP_TORTURE") else count
