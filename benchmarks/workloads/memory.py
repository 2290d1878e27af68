"""W7: how much memory does a save or load take beyond the state itself?

Each contender in a fresh process, which has loaded the code before. Files that are mapped count as
far as they are resident. A save in the background counts with all processes that it starts.
"""

from collections.abc import Callable
from pathlib import Path

from benchmarks.asked import Asked
from benchmarks.contenders.background import BackgroundContender, background_contenders
from benchmarks.contenders.contender import Contender
from benchmarks.contenders.own import Shardkeep
from benchmarks.contenders.peers import peers
from benchmarks.contenders.torch_ways import Dcp, Safetensors, TorchSave
from benchmarks.figures import Figure
from benchmarks.peaks import peak_nbytes, peak_nbytes_of_tree
from benchmarks.places import TMPFS, folder_on, remove
from benchmarks.ranks import RankFailed, on_ranks
from benchmarks.state_dicts import Shapes
from benchmarks.stored_states import Placing, State, large, make, nbytes_of

NAME = "W7"
TITLE = "Peak memory beyond a state of 2 GiB, one process, tmpfs"
SETTING = "tmpfs"
SAVE, LOAD, BACKGROUND = "save", "load", "save in the background"
STATE = "the state"
_TINY: Shapes = {"a": (8, 4)}

Peaks = dict[tuple[str, str], int]
"""By act and contender."""


def run(asked: Asked) -> list[Figure]:
    """Of all contenders."""
    shapes = large(asked.quick)
    figures = [Figure(NAME, SETTING, STATE, STATE, (float(nbytes_of(shapes)),), "bytes")]
    foreground = [
        Shardkeep(),
        Dcp(),
        Dcp(2),
        Safetensors(),
        TorchSave(),
        *asked.unless_quick(peers()),
    ]
    with folder_on(TMPFS) as folder:
        for one in asked.chosen(foreground):
            figures += _measured(one, lambda one=one: _foreground_peaks(one, shapes, folder))
            remove(folder / "full")
        for one in asked.chosen(background_contenders(asked.quick)):
            figures += _measured(one, lambda one=one: _background_peaks(one, shapes, folder))
            remove(folder / "full")
    return figures


def _measured(contender: Contender | BackgroundContender, act: Callable[[], Peaks]) -> list[Figure]:
    try:
        (peaks,) = on_ranks(1, act)
    except RankFailed as error:
        if not contender.is_peer:
            raise
        what = SAVE if isinstance(contender, Contender) else BACKGROUND
        why = str(error).strip().splitlines()[-1][:120]
        return [Figure(NAME, SETTING, what, contender.name, (), note=why)]
    return [Figure(NAME, SETTING, *what, (float(peak),), "bytes") for what, peak in peaks.items()]


def _foreground_peaks(contender: Contender, shapes: Shapes, folder: Path) -> Peaks:
    state = _warmed(contender, shapes, folder)
    save = peak_nbytes(lambda: contender.save(state, folder / "full"))
    loads = {
        (LOAD, name): peak_nbytes(lambda load=load: load(state, folder / "full"))
        for name, load in contender.loads().items()
    }
    return {(SAVE, contender.name): save, **loads}


def _warmed(contender: Contender, shapes: Shapes, folder: Path) -> State:
    """A state whose pages are all there; the contender has done a little already."""
    contender.prepare()
    warm, tiny = folder / "warm", make(_TINY, Placing.ROWS, filled=True)
    contender.save(tiny, warm)
    for load in contender.loads().values():
        load(tiny, warm)
    remove(warm)
    return make(shapes, Placing.ROWS, filled=True)


def _background_peaks(contender: BackgroundContender, shapes: Shapes, folder: Path) -> Peaks:
    contender.prepare()
    contender.begin(make(_TINY, Placing.ROWS, filled=True), folder / "warm")()
    remove(folder / "warm")
    state = make(shapes, Placing.ROWS, filled=True)
    peak = peak_nbytes_of_tree(lambda: contender.begin(state, folder / "full")())
    return {(BACKGROUND, contender.name): peak}
