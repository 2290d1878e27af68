"""How is a pickle read without running anything of it?

By a small machine of our own that knows few opcodes and calls nothing but the functions that it
was given. A name that is not among them is refused. What a hostile pickle can reach is memory in
proportion to its length: nothing here recurses, and no length is believed before it is compared
with what is there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from shardkeep.errors import CorruptError, UnsupportedError

Known: TypeAlias = Mapping[tuple[str, str], Any]
"""By module and name: a function that makes a value of its arguments, or a value itself."""

_MAX_INT_NBYTES = 9
# Real pickles have several bytes for each container; a hostile one might have one.
_BYTES_PER_CONTAINER = 3
_FEW = 1000


class Record:
    """An instance of a class that is known by name only, with what was set on it."""

    __slots__ = ("name", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Any = None

    def __repr__(self) -> str:
        return f"Record({self.name})"


def record(name: str) -> Callable[..., Record]:
    """A function for `Known` that makes an empty Record."""

    def make(*arguments: Any) -> Record:
        if arguments:
            raise CorruptError(f"a {name} takes no arguments")
        return Record(name)

    return make


def read_pickle(
    data: bytes, *, known: Known, where: str, persistent: Callable[[Any], Any] | None = None
) -> Any:
    """The value that the pickle describes; UnsupportedError for a name that is not known."""
    try:
        return _Machine(data, known, where, persistent).run()
    except (CorruptError, UnsupportedError):
        raise
    except (
        IndexError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        MemoryError,
        struct.error,
    ) as error:
        raise CorruptError(f"{where} is no pickle as it should be: {error!r:.200}") from None


class _Machine:
    def __init__(
        self, data: bytes, known: Known, where: str, persistent: Callable[[Any], Any] | None
    ) -> None:
        self.data = data
        self.at = 0
        self.known = known
        self.where = where
        self.persistent = persistent
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        """The stacks that lie under each open mark."""
        self.memo: list[Any] = []
        self.room = _FEW + len(data) // _BYTES_PER_CONTAINER

    def run(self) -> Any:
        data, acts = self.data, _ACTS
        while True:
            opcode = data[self.at]
            self.at += 1
            if opcode == _STOP:
                return self.stack.pop()
            act = acts[opcode]
            if act is None:
                raise CorruptError(
                    f"{self.where} holds the pickle opcode {opcode:#x} at byte {self.at - 1}, "
                    "which no such file has"
                )
            act(self)

    def take(self, nbytes: int) -> bytes:
        start = self.at
        if not 0 <= nbytes <= len(self.data) - start:
            raise CorruptError(f"{self.where} is cut off: {nbytes} bytes at {start} are not there")
        self.at = start + nbytes
        return self.data[start : self.at]

    def number(self, nbytes: int) -> int:
        return int.from_bytes(self.take(nbytes), "little")

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        text = self.take(end - self.at).decode()
        self.at += 1
        return text

    def push_container(self, made: Any) -> None:
        self.room -= 1
        if self.room < 0:
            raise CorruptError(f"{self.where} holds more containers than a file of its size would")
        self.stack.append(made)

    def marked(self) -> list[Any]:
        """What was pushed since the last mark."""
        found, self.stack = self.stack, self.below.pop()
        return found

    def find(self, module: Any, name: Any) -> Any:
        try:
            return self.known[module, name]
        except KeyError:
            raise UnsupportedError(
                f"{self.where} asks for {module!s:.100}.{name!s:.100}, which has no place in such "
                "a file and might run code: nothing was run. Take it only from where you trust it, "
                "and convert it there with torch itself"
            ) from None


def _frame(m: _Machine) -> None:
    m.take(8)


def _memoize(m: _Machine) -> None:
    m.memo.append(m.stack[-1])


def _put(width: int) -> Callable[[_Machine], None]:
    def act(m: _Machine) -> None:
        index = m.number(width)
        if index != len(m.memo):
            raise CorruptError(f"{m.where} keeps values out of order")
        m.memo.append(m.stack[-1])

    return act


def _get(width: int) -> Callable[[_Machine], None]:
    def act(m: _Machine) -> None:
        m.stack.append(m.memo[m.number(width)])

    return act


def _mark(m: _Machine) -> None:
    m.below.append(m.stack)
    m.room -= 1
    if m.room < 0:
        raise CorruptError(f"{m.where} nests more than a file of its size would")
    m.stack = []


def _constant(value: Any) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(value)


def _uint(width: int) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.number(width))


def _int32(m: _Machine) -> None:
    m.stack.append(int.from_bytes(m.take(4), "little", signed=True))


def _long(m: _Machine) -> None:
    nbytes = m.number(1)
    if nbytes > _MAX_INT_NBYTES:
        raise CorruptError(f"{m.where} holds an integer of {nbytes} bytes")
    m.stack.append(int.from_bytes(m.take(nbytes), "little", signed=True))


def _float(m: _Machine) -> None:
    m.stack.append(struct.unpack(">d", m.take(8))[0])


def _text(width: int) -> Callable[[_Machine], None]:
    def act(m: _Machine) -> None:
        m.stack.append(str(m.take(m.number(width)), "utf-8", "surrogatepass"))

    return act


def _tuple(count: int) -> Callable[[_Machine], None]:
    def act(m: _Machine) -> None:
        items = tuple(m.stack[-count:])
        if len(items) < count:
            raise CorruptError(f"{m.where} takes more from its stack than is there")
        del m.stack[-count:]
        m.push_container(items)

    return act


def _marked_tuple(m: _Machine) -> None:
    m.push_container(tuple(m.marked()))


def _append(m: _Machine) -> None:
    value = m.stack.pop()
    _list(m).append(value)


def _appends(m: _Machine) -> None:
    values = m.marked()
    _list(m).extend(values)


def _list(m: _Machine) -> list[Any]:
    target: Any = m.stack[-1]
    if type(target) is not list:
        raise CorruptError(f"{m.where} appends to what is no list")
    return cast("list[Any]", target)


def _set_item(m: _Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    _set_all(m, [key, value])


def _set_items(m: _Machine) -> None:
    _set_all(m, m.marked())


def _set_all(m: _Machine, items: list[Any]) -> None:
    target: Any = m.stack[-1]
    if type(target) is not dict or len(items) % 2:
        raise CorruptError(f"{m.where} sets items of what is no dict")
    for at in range(0, len(items), 2):
        key = items[at]
        # Not tuples: the hash of one that is nested a million times would overflow C's stack.
        if type(key) is not str and type(key) is not int and type(key) is not Record:
            raise CorruptError(f"{m.where} has a dict with a key that is a {type(key).__name__}")
        target[key] = items[at + 1]


def _global(m: _Machine) -> None:
    module = m.line()
    m.stack.append(m.find(module, m.line()))


def _stack_global(m: _Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise CorruptError(f"{m.where} names a class by what is no text")
    m.stack.append(m.find(module, name))


def _call(m: _Machine) -> None:
    arguments, function = m.stack.pop(), m.stack.pop()
    if type(arguments) is not tuple or not callable(function):
        raise CorruptError(f"{m.where} calls what is no function")
    m.push_container(function(*arguments))


def _build(m: _Machine) -> None:
    state = m.stack.pop()
    target: Any = m.stack[-1]
    if type(target) is not Record or target.state is not None:
        raise CorruptError(f"{m.where} sets the state of what has none")
    target.state = state


def _persistent(m: _Machine) -> None:
    if m.persistent is None:
        raise CorruptError(f"{m.where} refers to something outside of it")
    m.stack.append(m.persistent(m.stack.pop()))


def _nothing(m: _Machine) -> None:
    m.take(1)


_STOP = ord(".")
_BY_OPCODE: dict[int, Callable[[_Machine], None]] = {
    0x80: _nothing,  # the protocol's number
    0x95: _frame,
    0x94: _memoize,
    ord("q"): _put(1),
    ord("r"): _put(4),
    ord("h"): _get(1),
    ord("j"): _get(4),
    ord("("): _mark,
    ord("N"): _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    ord("K"): _uint(1),
    ord("M"): _uint(2),
    ord("J"): _int32,
    0x8A: _long,
    ord("G"): _float,
    0x8C: _text(1),
    ord("X"): _text(4),
    ord(")"): _constant(()),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    ord("t"): _marked_tuple,
    ord("]"): lambda m: m.push_container([]),
    ord("a"): _append,
    ord("e"): _appends,
    ord("}"): lambda m: m.push_container({}),
    ord("s"): _set_item,
    ord("u"): _set_items,
    ord("c"): _global,
    0x93: _stack_global,
    ord("R"): _call,
    0x81: _call,
    ord("b"): _build,
    ord("Q"): _persistent,
}
_ACTS = [_BY_OPCODE.get(opcode) for opcode in range(256)]
