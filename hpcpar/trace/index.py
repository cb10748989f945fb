"""The index of a trace: a link to each rank's file, so that one name opens them all.

    trace.h5:  /rank/00000 -> trace.00000.h5:/     relative to the folder, which may be moved or renamed

A link whose file is missing raises where it is followed; it never reads as zeros.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcpar.errors import PlanError
from hpcpar.trace import schema, seal


def write_index(folder: str | Path, ranks: int, description: Mapping[str, Any]) -> Path:
    """Write `folder`/trace.h5 for `ranks` ranks, whether their files are there yet or not; it appears when it is whole.

    Raises PlanError for a folder that cannot be written.
    """
    import h5py

    path = Path(folder) / schema.INDEX
    fresh = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(fresh, "w", locking=False, userblock_size=seal.BYTES) as file:
            file.attrs["schema"] = schema.VERSION
            file.attrs["ranks"] = ranks
            file["description"] = text = json.dumps(description)
            file.attrs["crc"] = schema.header_crc(schema.VERSION, -1, ranks, text)
            links = file.create_group("rank")
            for rank in range(ranks):
                links[f"{rank:05d}"] = h5py.ExternalLink(schema.file_name(rank), "/")
        seal.seal(fresh)
        os.replace(fresh, path)
    except OSError as e:
        raise PlanError(f"cannot write {path}: {e.strerror or e}") from None
    return path
