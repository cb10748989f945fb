"""What the backward needs, by (stage, microbatch), and how many bytes that is.

F puts `saved`      I takes it and puts `held`, what W still needs      W takes that
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Key = tuple[int, int]


def arrays(tree: Any) -> Iterator[Any]:
    """Every array in nested tuples and lists."""
    if isinstance(tree, tuple | list):
        for item in tree:
            yield from arrays(item)
    elif hasattr(tree, "nbytes"):
        yield tree


def owned(tree: Any) -> Iterator[tuple[int, int]]:
    """(identity, bytes) of the memory behind every array: two views of one array are the same memory."""
    for a in arrays(tree):
        while getattr(a, "base", None) is not None and hasattr(a.base, "nbytes"):
            a = a.base
        yield id(a), int(a.nbytes)


class Stash:
    """Saved and held arrays of the microbatches in flight; `bytes` counts memory once, however many layers share it."""

    def __init__(self) -> None:
        self._trees: dict[tuple[str, Key], Any] = {}
        self._blocks: dict[tuple[str, Key], list[tuple[int, int]]] = {}
        self._users: dict[int, tuple[int, int]] = {}  # identity -> (users, bytes)
        self.bytes = 0

    def put(self, kind: str, key: Key, tree: Any) -> None:
        """Keep a tree of arrays."""
        self._trees[kind, key] = tree
        blocks = list(dict(owned(tree)).items())
        self._blocks[kind, key] = blocks
        for block, size in blocks:
            users, _ = self._users.get(block, (0, 0))
            if not users:
                self.bytes += size
            self._users[block] = (users + 1, size)

    def take(self, kind: str, key: Key) -> Any:
        """The tree, which is then counted no more."""
        self._release(self._blocks.pop((kind, key)))
        return self._trees.pop((kind, key))

    def _release(self, blocks: Iterable[tuple[int, int]]) -> None:
        for block, size in blocks:
            users, _ = self._users[block]
            if users == 1:
                del self._users[block]
                self.bytes -= size
            else:
                self._users[block] = (users - 1, size)

    def __len__(self) -> int:
        return len(self._trees)
