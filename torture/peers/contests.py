"""What is asked of every library?"""

from __future__ import annotations

import os
import pickle
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torture.peers.children import Saver, asked, state_of, version_at
from torture.peers.libraries import Library
from torture.power_loss import cannot_run, disk, remounted, shut_down

_SMALL = 4_000
_LARGE = 500_000


@dataclass(frozen=True)
class Finding:
    """What a library did, in a few words, and whether that is what a user hopes for."""

    text: str
    good: bool


Contest = Callable[[Library, int, bool], Finding]


def flipped_bits(library: Library, seed: int, quick: bool) -> Finding:
    """Of single-bit flips anywhere in the files of a checkpoint: how many pass a load unseen?"""
    count = 60 if quick else 400
    with tempfile.TemporaryDirectory(dir="/dev/shm") as base:
        path = Path(base) / "c"
        said = asked(lambda: str(library.save(state_of(1, _SMALL), path)))
        if said.startswith(("error", "crash", "hang")):
            return Finding(f"cannot save: {said}", good=False)
        files = [one for one in sorted(path.rglob("*")) if one.is_file()]
        # What only tells how a save went is read by no load.
        files = [one for one in files if not one.name.endswith("-report.json")]
        dice, answers = random.Random(seed), Counter[str]()
        for _ in range(count):
            file = dice.choices(files, [one.stat().st_size for one in files])[0]
            bit = dice.randrange(8 * file.stat().st_size)
            _flip(file, bit)
            answers[version_at(library, path, _SMALL).split()[0].rstrip(":")] += 1
            _flip(file, bit)
    unseen, wrong = answers["whole"] + answers["mixed"], answers["mixed"]
    return Finding(f"{unseen} of {count} unseen, {wrong} of them wrong values", good=not unseen)


def _flip(file: Path, bit: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(bit // 8)
        (byte,) = opened.read(1)
        opened.seek(bit // 8)
        opened.write(bytes([byte ^ 1 << bit % 8]))


def killed_overwrites(library: Library, seed: int, quick: bool) -> Finding:
    """Killed at a random moment of a save over another: is the old or the new one there?"""
    rounds = 10 if quick else 50
    dice, answers = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as base:
        for number in range(rounds):
            path = Path(base) / str(number)
            saver = Saver(library, path, _LARGE, 0)
            # The third save is warm; the second tells how long one takes.
            saver.wait(2)
            start = time.perf_counter()
            saver.wait(3)
            time.sleep(dice.uniform(0, 1.2) * (time.perf_counter() - start))
            acked = saver.acked
            saver.kill()
            found = version_at(library, path, _LARGE)
            whole = found in (f"whole {acked}", f"whole {acked + 1}")
            answers["good" if whole else found.split()[0]] += 1
            shutil.rmtree(path, ignore_errors=True)
    lost = rounds - answers["good"]
    return Finding(f"{lost} of {rounds} lost", good=not lost)


def lost_power(library: Library, seed: int, quick: bool) -> Finding:
    """Power goes right after the save has returned: is it there?"""
    if why := cannot_run():
        return Finding(f"not run: {why}", good=True)
    cycles = 5 if quick else 25
    lost = 0
    with disk() as (image, place):
        for number in range(1, cycles + 1):
            path = place / "c"

            def question(path: Path = path, number: int = number) -> str:
                library.save(state_of(number, _SMALL), path)
                shut_down(place)
                return "saved"

            if (said := asked(question)) != "saved":
                return Finding(f"cannot save there ({said})", good=False)
            remounted(image, place)
            if version_at(library, path, _SMALL) != f"whole {number}":
                lost += 1
                shutil.rmtree(path, ignore_errors=True)
    return Finding(f"{lost} of {cycles} acknowledged saves lost", good=not lost)


def full_disk(library: Library, seed: int, quick: bool) -> Finding:
    """The disk is too full for a larger save over another: is there an error, and the old one?"""
    if os.geteuid() != 0:
        return Finding("not run: it takes root to mount a small disk", good=True)
    shares = (0.1, 0.5) if quick else (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    silent = lost = 0
    for share in shares:
        with tempfile.TemporaryDirectory() as base:
            _mount_tmpfs(base, int((1 + 3 * share) * 8 * _LARGE) + 100_000)
            try:
                path = Path(base) / "c"
                asked(lambda path=path: str(library.save(state_of(1, _LARGE), path)))
                said = asked(lambda path=path: str(library.save(state_of(2, 3 * _LARGE), path)))
                silent += said == "None"
                lost += version_at(library, path, _LARGE) != "whole 1"
            finally:
                subprocess.run(["umount", base], check=False)
    text = f"{lost} of {len(shares)} lost the old one" + (f", {silent} silently" if silent else "")
    return Finding(text, good=not lost)


def _mount_tmpfs(place: str, nbytes: int) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", place]
    subprocess.run(command, check=True, capture_output=True)


class _Bomb:
    """Unpickled freely, it leaves a mark."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.mark,)


def hostile_files(library: Library, seed: int, quick: bool) -> Finding:
    """A pickle that runs code, in the place of each file of a checkpoint: does a load run it?"""
    ran: list[str] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as base:
        path, mark = Path(base) / "c", Path(base) / "mark"
        asked(lambda: str(library.save(state_of(1, _SMALL), path)))
        for file in [one for one in sorted(path.rglob("*")) if one.is_file()]:
            content = file.read_bytes()
            file.write_bytes(pickle.dumps(_Bomb(str(mark))))
            version_at(library, path, _SMALL)
            if mark.exists():
                ran.append(file.name)
                mark.rmdir()
            file.write_bytes(content)
    return Finding(f"runs {', '.join(ran)}" if ran else "runs nothing", good=not ran)


CONTESTS: dict[str, Contest] = {
    "power lost after the save returned": lost_power,
    "killed while overwriting": killed_overwrites,
    "disk full while overwriting": full_disk,
    "single-bit flips": flipped_bits,
    "pickle in place of a file": hostile_files,
}
