"""Planning for a few boxes does not pay for numpy."""

import subprocess
import sys

USE = """
import sys
from shardkeep.boxes import Box, Grid, check_tiling, find_overlaps, meetings
boxes = list(Grid.split((8, 8), [[2], [2]]).cells())
assert check_tiling((8, 8), boxes).is_tiling
assert meetings(boxes, boxes) and not find_overlaps(boxes)
print("numpy" in sys.modules, "torch" in sys.modules)
"""


def test_a_few_boxes_are_handled_without_numpy():
    done = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "False"]
