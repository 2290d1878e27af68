"""What was asked of shardkeep's speed, and is it reached? All results are computed from figures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.contenders.background import CACHED, COPY_ON_WRITE, PREPARED
from benchmarks.figures import DCP, OURS, RAW, Figure, Figures
from benchmarks.planned_models import PARALLELISMS
from benchmarks.stored_states import Placing
from benchmarks.turns import WRITTEN
from benchmarks.workloads import background as w6, memory as w7, planning as w5, start as w8
from benchmarks.workloads.resharding import OTHER_DIM, SAME_DIM
from benchmarks.workloads.small_tensors import ALONE, TOGETHER

AT_LEAST, AT_MOST = "≥", "≤"


@dataclass(frozen=True)
class Claim:
    """A figure with its limit; None if it was not measured."""

    workload: str
    what: str
    relation: str
    limit: float
    reached: float | None
    unit: str = "x"
    raw: float | None = None
    """What the raw limit reaches of the same goal, where it is one to be faster than somebody."""

    @property
    def is_met(self) -> bool | None:
        if self.reached is None:
            return None
        if self.relation == AT_LEAST:
            return self.reached >= self.limit
        return self.reached <= self.limit

    @property
    def asked_text(self) -> str:
        return f"{self.relation} {value_text(self.limit, self.unit)}"

    @property
    def reached_text(self) -> str:
        return "" if self.reached is None else value_text(self.reached, self.unit)

    @property
    def verdict(self) -> str:
        return {True: "met", False: "not met", None: "not measured"}[self.is_met]

    @property
    def is_beyond_raw(self) -> bool:
        """Whether it is missed, and whoever moves the bytes and does nothing else misses it too."""
        return bool(self.remark)

    @property
    def remark(self) -> str:
        if self.is_met is not False or self.raw is None or self.raw >= self.limit:
            return ""
        return f"raw itself: {value_text(self.raw, self.unit)}"


def value_text(value: float, unit: str) -> str:
    if unit == "s":
        return f"{1e3 * value:,.3g} ms" if value < 1 else f"{value:,.2f} s"
    if unit == "bytes":
        return f"{value / 2**20:,.1f} MiB" if value >= 2**20 else f"{value / 2**10:,.0f} KiB"
    return f"{value:.2f} x" if value < 10 else f"{value:,.0f} x"


def claims_of(figures: Sequence[Figure]) -> list[Claim]:
    """All of them, in the order of the workloads."""
    found = Figures(figures)
    several = (_w1, _w2, _w3, _w4, _w5, _w6, _w7, _w8)
    return [claim for claims in several for claim in claims(found)]


def ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


class _Setting:
    """Makes claims about one setting."""

    def __init__(self, figures: Figures, workload: str, setting: str, words: str = "") -> None:
        self.found = figures.at(workload, setting)
        self.workload = workload
        self.words = words or setting

    def of_raw(self, act: str, limit: float) -> Claim:
        """The share of the raw limit's speed that is reached."""
        reached = ratio(self.found.median(act, RAW), self.found.median(act, OURS))
        return self.claim(f"{act}: speed of raw", AT_LEAST, limit, reached)

    def than_default_dcp(self, act: str, limit: float) -> Claim:
        other = self.found.median(act, DCP)
        return self._faster(f"{act}: faster than DCP's default", act, other, limit)

    def than_dcp(self, act: str, limit: float) -> Claim:
        other = self.found.best(act, DCP)
        return self._faster(f"{act}: faster than DCP's best", act, other, limit)

    def than(self, other: str, act: str, limit: float) -> Claim:
        found = self.found.median(act, other)
        return self._faster(f"{act}: faster than {other}", act, found, limit)

    def _faster(self, what: str, act: str, other: float | None, limit: float) -> Claim:
        ours, raw = (ratio(other, self.found.median(act, one)) for one in (OURS, RAW))
        return replace(self.claim(what, AT_LEAST, limit, ours), raw=raw)

    def claim(
        self, what: str, relation: str, limit: float, reached: float | None, unit: str = "x"
    ) -> Claim:
        return Claim(self.workload, f"{self.words}, {what}", relation, limit, reached, unit)


def _w1(figures: Figures) -> list[Claim]:
    fast, disk = (_Setting(figures, "W1", place) for place in ("tmpfs", "disk"))
    recycled = ratio(
        fast.found.median("save", OURS), fast.found.median("save, recycled files", OURS)
    )
    return [
        fast.of_raw("save", 0.95),
        fast.than_default_dcp("save", 2.5),
        fast.than_dcp("save", 1.5),
        fast.claim("save, recycled files: faster than our fresh save", AT_LEAST, 1.5, recycled),
        fast.of_raw("load", 0.85),
        fast.than_dcp("load", 3),
        disk.of_raw("save", 0.9),
        disk.than_dcp("save", 3),
        disk.of_raw("save, fsync", 0.95),
        disk.of_raw("load", 0.7),
        disk.than_dcp("load", 6),
        disk.of_raw("load, cold", 0.9),
    ]


def _w2(figures: Figures) -> list[Claim]:
    rows, hsdp = (_Setting(figures, "W2", one.value) for one in (Placing.ROWS, Placing.HSDP))
    shares = [one.values for one in hsdp.found.act(WRITTEN).figures if one.contender == OURS]
    largest = max(shares[0]) / fmean(shares[0]) if shares else None
    once = [one.values for one in rows.found.act(WRITTEN).figures if one.contender == OURS]
    written = sum(shares[0]) / sum(once[0]) if shares and once else None
    return [
        rows.of_raw("save", 0.9),
        rows.than_dcp("save", 2),
        hsdp.claim("bytes written, of those of Shard(0)", AT_MOST, 1.01, written),
        hsdp.claim("largest rank's bytes, of the mean", AT_MOST, 1.05, largest),
    ]


def _w3(figures: Figures) -> list[Claim]:
    alone, together = (_Setting(figures, "W3", one) for one in (ALONE, TOGETHER))
    return [
        claim
        for act in ("save", "load")
        for claim in (
            alone.than_dcp(act, 20),
            alone.than("safetensors", act, 2),
            together.than_dcp(act, 50),
        )
    ]


def _w4(figures: Figures) -> list[Claim]:
    return [
        claim
        for several, limit in ((SAME_DIM, 0.7), (OTHER_DIM, 0.5))
        for into in several
        for one in [_Setting(figures, "W4", into.setting)]
        for claim in (one.of_raw("load", limit), one.than_dcp("load", 3))
    ]


def _w5(figures: Figures) -> list[Claim]:
    return [claim for how in PARALLELISMS for claim in _w5_of(figures, how.name)]


def _w5_of(figures: Figures, how: str) -> list[Claim]:
    def found(act: str) -> list[float]:
        """By number of ranks, as far as it was measured."""
        several = (figures.at(w5.NAME, w5.setting_of(how, ranks)) for ranks in w5.RANKS)
        return [one for each in several if (one := each.median(act, OURS)) is not None]

    saves, loads = found(w5.SAVE), found(w5.LOAD)
    few, many = w5.RANKS[0], w5.RANKS[-1]
    setting = _Setting(figures, w5.NAME, w5.setting_of(how, many), how)
    growth = max(saves) / saves[0] if saves else None
    return [
        setting.claim(f"{w5.SAVE}: most of any size, of {few} ranks' time", AT_MOST, 1.5, growth),
        setting.claim(f"{w5.SAVE}: most of any size", AT_MOST, 0.05, max(saves, default=None), "s"),
        setting.claim(f"{w5.LOAD}: most of any size", AT_MOST, 0.1, max(loads, default=None), "s"),
        *(
            setting.claim(
                f"{act}, {many:,} ranks", AT_MOST, limit, max(found(act), default=None), unit
            )
            for act, limit, unit in ((w5.COORDINATOR, 2, "s"), (w5.MANIFEST, 10**6, "bytes"))
        ),
    ]


def _w6(figures: Figures) -> list[Claim]:
    setting = _Setting(figures, w6.NAME, w6.SETTING, "background")
    found = setting.found
    copied, quiet = found.median(w6.LATER, w6.COPY), found.median(w6.STEP, w6.QUIET)
    waited = found.median(w6.TOTAL, w6.SYNC)
    first, later, total, step = (
        found.median(act, OURS) for act in (w6.FIRST, w6.LATER, w6.TOTAL, w6.STEP)
    )
    forked, ready = found.median(w6.LATER, COPY_ON_WRITE), found.median(w6.FIRST, PREPARED)
    return [
        setting.claim("blocked, of a warm copy", AT_MOST, 1.1, ratio(later, copied)),
        setting.claim("first save blocked, of a warm copy", AT_MOST, 2, ratio(first, copied)),
        setting.claim("first save, prepared, of a warm copy", AT_MOST, 2, ratio(ready, copied)),
        setting.claim("copy-on-write blocked, of a copy", AT_MOST, 0.3, ratio(forked, copied)),
        setting.claim("steps meanwhile, of quiet ones", AT_MOST, 1.15, ratio(step, quiet)),
        setting.claim("until complete, of a save", AT_MOST, 1.4, ratio(total, waited)),
        *(setting.than(CACHED, act, 1) for act in (w6.FIRST, w6.LATER, w6.TOTAL, w6.STEP)),
    ]


def _w7(figures: Figures) -> list[Claim]:
    setting = _Setting(figures, w7.NAME, w7.SETTING, "peak memory")
    found, nbytes = setting.found, setting.found.median(w7.STATE, w7.STATE)
    if nbytes is None:
        return []
    small, whole = 0.02 * nbytes + 64 * 2**20, 1.05 * nbytes
    return [
        setting.claim(act, AT_MOST, limit, found.median(act, OURS), "bytes")
        for act, limit in ((w7.SAVE, small), (w7.LOAD, small), (w7.BACKGROUND, whole))
    ]


def _w8(figures: Figures) -> list[Claim]:
    setting = _Setting(figures, w8.NAME, w8.SETTING, "start")
    return [
        setting.claim(act, AT_MOST, limit, setting.found.median(act, OURS), "s")
        for act, limit in ((w8.IMPORT, 0.1), (w8.FIRST_SAVE, 0.05))
    ]
