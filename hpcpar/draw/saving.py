"""A figure becomes a file whose ending names its format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcpar.errors import PlanError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: Figure, path: str | Path) -> None:
    """Write the figure; raises PlanError for a format that is not known or a file that cannot be written."""
    try:
        figure.savefig(path, dpi=120)
    except ValueError as e:
        raise PlanError(f"cannot draw {path}: {e}") from None
    except OSError as e:
        raise PlanError(f"cannot write {path}: {e.strerror or e}") from None
