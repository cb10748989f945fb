"""All events as one table, CSV or Parquet: a row an event, a column a field, the rank first; a rank at a time, so that memory stays small.

    rank,start,end,kind,operation,axis,stage,microbatch,version,step,peer,bytes,sequence
    0,12000,14000,F,,,0,3,,7,,0,41

Times are ns on the clock of the run, enums are names as in the trace. What has no meaning for an
event is empty (CSV) or null (Parquet), never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar.draw.exports.whole_file import whole_file
from hpcpar.errors import PlanError
from hpcpar.trace import Trace
from hpcpar.trace.schema import ENUMS, EVENT

BLOCK = 65536  # rows
OPTIONAL = ("stage", "microbatch", "version", "step", "peer")  # -1 where they have no meaning
COLUMNS = ("rank", *(EVENT.names or ()))


def save(trace: Trace, path: str | Path) -> str:
    """Write the events of every readable rank to a file whose ending, .csv or .parquet, says how; returns what was done.

    Raises PlanError for another ending, a file that cannot be written, or Parquet without pyarrow.
    """
    ending = Path(path).suffix
    if ending not in FORMATS:
        raise PlanError(f"--events {path}: the ending {ending or '(none)'} is not known; use one of {', '.join(FORMATS)}")
    with whole_file(path) as fresh:
        count = FORMATS[ending](trace, fresh)
    return f"{count} events of {len(trace.present)} ranks are in {path}"


def blocks(trace: Trace) -> Iterator[tuple[int, np.ndarray]]:
    """(rank, at most BLOCK of its events), rank by rank in the order of recording."""
    for rank in trace.present:
        events = trace.events(rank)
        for first in range(0, len(events), BLOCK):
            yield rank, events[first : first + BLOCK]


def _csv(trace: Trace, path: Path) -> int:
    import csv

    count = 0
    with open(path, "w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for rank, events in blocks(trace):
            columns: list[Any] = [[rank] * len(events)]
            for field in EVENT.names or ():
                if field in ENUMS:
                    columns.append(_names(field)[events[field]].tolist())
                elif field in OPTIONAL:
                    columns.append([v if v >= 0 else "" for v in events[field].tolist()])
                else:
                    columns.append(events[field].tolist())
            rows.writerows(zip(*columns, strict=True))
            count += len(events)
    return count


def _parquet(trace: Trace, path: Path) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise PlanError("Parquet needs pyarrow; pip install 'hpcpar[exports]', or write a .csv") from None
    plain = {field: pa.from_numpy_dtype(EVENT[field]) for field in EVENT.names or ()}
    named = dict.fromkeys(ENUMS, pa.dictionary(pa.uint8(), pa.string()))
    schema = pa.schema([("rank", pa.int32()), *{**plain, **named}.items()])
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for rank, events in blocks(trace):
            columns = [pa.array(np.full(len(events), rank, np.int32))]
            for field in EVENT.names or ():
                values = np.ascontiguousarray(events[field])
                if field in ENUMS:
                    names = _names(field)
                    codes = pa.array(values, mask=names[values] == "")
                    columns.append(pa.DictionaryArray.from_arrays(codes, pa.array(names.tolist())))
                else:
                    columns.append(pa.array(values, mask=values < 0 if field in OPTIONAL else None))
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            count += len(events)
    return count


def _names(field: str) -> np.ndarray:
    """(256,) the name of each value of an enum, "" for NONE; a number that this version does not know stays one."""
    names = np.arange(256).astype("U16").astype(object)
    for member in ENUMS[field]:
        names[member.value] = "" if member.name == "NONE" else member.name
    return names


FORMATS: dict[str, Callable[[Trace, Path], int]] = {".csv": _csv, ".parquet": _parquet}
