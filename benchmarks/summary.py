"""What of all figures would somebody see who looks at one table only?"""

from collections.abc import Sequence

from benchmarks.claims import value_text
from benchmarks.figures import DCP, OURS, Figure, Figures
from benchmarks.stored_states import Placing
from benchmarks.workloads.small_tensors import ALONE, TOGETHER

# By how the names of their contenders start.
LIBRARIES = {
    OURS: OURS,
    DCP: DCP,
    "Orbax": "Orbax",
    "Megatron": "Megatron",
    "torchsnapshot": "torchsnapshot",
    "torch_checkpointing": "torch_checkpointing",
    "safetensors": "safetensors",
    "torch.": "torch.save",
}
ROWS = (
    ("save 2 GiB, one process", "W1", "tmpfs", "save"),
    ("load it", "W1", "tmpfs", "load"),
    ("save it to disk, fsync", "W1", "disk", "save, fsync"),
    ("save 2 GiB, four processes", "W2", Placing.ROWS.value, "save"),
    ("save 20,000 small tensors, one process", "W3", ALONE, "save"),
    ("load them", "W3", ALONE, "load"),
    ("save 20,000 small tensors, four processes", "W3", TOGETHER, "save"),
    ("load them", "W3", TOGETHER, "load"),
)


def summary(figures: Sequence[Figure]) -> str:
    """A row for each act that we took part in; of a library used in several ways, the fastest."""
    found = Figures(figures)
    lines = [f"| | {' | '.join(LIBRARIES.values())} |", f"|---{'|---:' * len(LIBRARIES)}|"]
    for words, workload, setting, act in ROWS:
        here = found.at(workload, setting)
        times = [here.best(act, name) for name in LIBRARIES]
        if times[0] is None:
            continue
        best = min(time for time in times if time is not None)
        cells = ("" if time is None else _cell(time, best) for time in times)
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(time: float, best: float) -> str:
    text = value_text(time, "s")
    return f"**{text}**" if time == best else text
