"""What tables for a terminal are made of: columns without lines between them, bytes with a prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def grid(columns: Sequence[str], header: bool = True) -> Table:
    """An empty table with these columns; names and words to the left, numbers to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=header, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 or name in ("operation", "axis") else "right", no_wrap=i == 0, overflow="fold")
    return table


def size(count: float | None) -> str:
    """Bytes with a binary prefix and three digits."""
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
