"""What of a state is filled, where live objects stand in it, and who is told afterwards?"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardkeep.errors import InvalidError
from shardkeep.manifest import Manifest, Node
from shardkeep.state.adapting import adapters_of
from shardkeep.state.live import Stored
from shardkeep.state.paths import Path, dotted, get_element, path_text
from shardkeep.state.placing import place, placed
from shardkeep.state.restoring import is_asked, stored_leaves
from shardkeep.state.tree import leaves, map_tree


class Shadow:
    """A state with its live objects opened: what is filled, and whom to tell afterwards.

    An object is not opened if `keys` ask for nothing that was saved of it: it may make much memory.
    """

    def __init__(
        self, state: Any, manifest: Manifest, *, me: int, keys: Sequence[str] | None
    ) -> None:
        root = Stored(manifest.tree, manifest.tensors, manifest.world, me)
        there = leaves(state)
        found = {path: (live, root.at(*path)) for path, live in adapters_of(there).items()}
        self._live = {
            path: live for path, (live, stored) in found.items() if _is_open(path, stored, keys)
        }
        self._hollow = {path for path in self._live if _is_hollow(found[path][1].node)}
        self.tree = state
        self.leaves: Sequence[tuple[Path, Any]] = there
        """What may be filled, by place."""
        if self._live:
            self.tree = map_tree(
                lambda path, leaf: (
                    self._live[path].wanted(found[path][1]) if path in self._live else leaf
                ),
                state,
            )
            self.leaves = leaves(self.tree)

    def require_whole(self, paths: Iterable[Path]) -> None:
        """Raise unless the objects that can only be loaded whole are, or not at all."""
        loaded = set(paths)
        touched = self._by_owner(loaded)
        for path, _ in self.leaves:
            at = self._owner(path)
            if path in loaded or at not in touched or self._live[at].is_divisible:
                continue
            raise InvalidError(
                f"only a part of {path_text(at)} would be loaded, without {dotted(path)!r}; "
                f"let keys= take all of it, such as '{dotted(at)}*', or nothing"
            )

    def put_back(self, into: Any, news: Mapping[Path, Any], loaded: Iterable[Path]) -> None:
        """Values and new tensors in their places of `into`, and live objects told of theirs.

        An object of which nothing was loaded is left alone, unless what was saved is empty.
        """
        if not self._live:
            place(into, news)
            return
        owned = {path: value for path, value in news.items() if self._owner(path) is not None}
        place(into, {path: value for path, value in news.items() if path not in owned})
        self.tree = placed(self.tree, owned)
        touched = self._by_owner(loaded)
        for at, live in self._live.items():
            if at in touched or at in self._hollow:
                live.give(get_element(self.tree, at), touched.get(at, set()))

    def _by_owner(self, paths: Iterable[Path]) -> dict[Path, set[Path]]:
        """The live objects in which some of the paths lie, with the paths from there on."""
        found: dict[Path, set[Path]] = {}
        for path in paths:
            at = self._owner(path)
            if at is not None:
                found.setdefault(at, set()).add(path[len(at) :])
        return found

    def _owner(self, path: Path) -> Path | None:
        """The live object in which a place lies."""
        for length in range(len(path) + 1):
            if path[:length] in self._live:
                return path[:length]
        return None


def _is_open(path: Path, stored: Stored, keys: Sequence[str] | None) -> bool:
    """Whether something is asked for of an object; of one that was not saved, to be told so."""
    if keys is None or stored.node is None:
        return True
    return any(is_asked((*path, *below), keys) for below, _ in stored_leaves(stored.node))


def _is_hollow(node: Node | None) -> bool:
    """Whether something was saved, which has no leaf to tell of it: an empty dict, say."""
    return node is not None and not stored_leaves(node)
