"""A file that appears under its name when it is whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcpar.errors import PlanError


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """The name to write to; what stands there takes the name `path` at the end. Raises PlanError for a place that cannot be written."""
    path = Path(path)
    fresh = path.with_name(f".{path.name}.new")
    try:
        yield fresh
        os.replace(fresh, path)
    except OSError as e:
        raise PlanError(f"cannot write {path}: {e.strerror or e}") from None
    finally:
        fresh.unlink(missing_ok=True)
