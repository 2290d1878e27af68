"""What does loading do behind one's back? Run by test_hostile.py in a process of its own.

An audit hook cannot be taken away again, and records everything from when it is armed.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch

import shardkeep as sk
from shardkeep.manifest import MANIFEST_NAME
from shardkeep.manifest.digests import manifest_digest

FORBIDDEN = {
    "pickle.find_class",
    "exec",
    "compile",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "socket.connect",
    "import",
    "marshal.loads",
    "ctypes.dlopen",
}
STATE: dict[str, Any] = {
    "w": torch.arange(100.0),
    "t": (1, 2**70, float("nan"), b"x", torch.Size([2])),
    "s": torch.eye(3).to_sparse(),
}


class Guard:
    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.armed = False
        self.seen: list[str] = []
        self.opened = 0

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event in FORBIDDEN:
            self.seen.append(f"{event} {args!r}"[:200])
        elif event == "open":
            self.opened += 1
            name = os.fspath(args[0]) if not isinstance(args[0], int) else ""
            is_inside = str(name).startswith(self.folder) or os.sep not in str(name)
            if not is_inside:
                self.seen.append(f"open {name}")


def save(folder: Path) -> None:
    sk.save(STATE, folder, durable=False)


def rewrite_manifest(folder: Path, old: bytes, new: bytes) -> None:
    """A manifest with other content and a digest that fits: a forger's, not damage."""
    path = folder / MANIFEST_NAME
    body = path.read_bytes()[:-45]
    assert old in body, old
    body = body.replace(old, new, 1)
    path.write_bytes(b'%b,"digest":"%b"}' % (body, manifest_digest(body).encode()))


def make_folders(root: Path) -> list[Path]:
    made: list[Path] = []

    def fresh(name: str) -> Path:
        made.append(root / name)
        save(made[-1])
        return made[-1]

    fresh("good")
    data = next(fresh("flipped").glob("*.safetensors"))
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    data = next(fresh("linked").glob("*.safetensors"))
    data.rename(root / "elsewhere")
    data.symlink_to(root / "elsewhere")
    manifest = fresh("linked_manifest") / MANIFEST_NAME
    manifest.rename(root / "elsewhere.json")
    manifest.symlink_to(root / "elsewhere.json")
    data = next(fresh("pipe").glob("*.safetensors"))
    data.unlink()
    os.mkfifo(data)
    value = b'{"bytes":"eA=="}'
    rewrite_manifest(fresh("unknown_type"), value, b'{"os.system":"touch hacked"}')
    rewrite_manifest(fresh("builtin_type"), value, b'{"eval":"1"}')
    rewrite_manifest(fresh("odd_dtype"), b'{"size":[2]}', b'{"dtype":"load"}')
    rewrite_manifest(fresh("odd_device"), b'{"size":[2]}', b'{"device":"/etc/passwd"}')
    folder = fresh("escape")
    save_id = sk.open(folder).save_id.encode()
    rewrite_manifest(folder, b'"save_id":"' + save_id, b'"save_id":"../../../../x')
    (fresh("pickled") / MANIFEST_NAME).write_bytes(b"cos\nsystem\n(S'touch hacked'\ntR.")
    return made


def outcome(folder: Path) -> str:
    try:
        sk.load(folder)
        with sk.open(folder) as checkpoint:
            checkpoint.verify()
            checkpoint.tree()
    except Exception as error:
        return type(error).__name__
    return "loaded"


def main(root: Path) -> None:
    folders = make_folders(root)
    # Twice: what is imported when it is first needed is there by then.
    for folder in folders:
        outcome(folder)
    guard = Guard(root)
    sys.addaudithook(guard)
    guard.armed = True
    found = [(folder.name, outcome(folder)) for folder in folders]
    guard.armed = False
    for name, what in found:
        print(name, what)
    print("opened", guard.opened)
    for event in guard.seen:
        print("FORBIDDEN", event)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
