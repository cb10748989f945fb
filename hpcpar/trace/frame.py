"""Events as a pandas DataFrame: a row an event, enums as categories that bear their names, times in ns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcpar.errors import PlanError
from hpcpar.trace import schema

if TYPE_CHECKING:
    from pandas import DataFrame


def frame(events: np.ndarray) -> DataFrame:
    """events (n,) with the columns of EVENT and others -> a DataFrame of n rows; raises PlanError where there is no pandas."""
    try:
        import pandas
    except ImportError:
        raise PlanError("a frame needs pandas, which is not installed here; pip install pandas, or use all_events()") from None
    columns = {}
    for name in events.dtype.names or ():
        values = np.ascontiguousarray(events[name])
        columns[name] = _named(values, name) if name in schema.ENUMS else values
    return pandas.DataFrame(columns)


def _named(values: np.ndarray, field: str) -> object:
    """An enum column (n,) as names; a number that this version does not know stays one."""
    import pandas

    known = {int(e): e.name.lower() for e in schema.ENUMS[field]}
    numbers = sorted({*known, *np.unique(values).tolist()})
    return pandas.Categorical.from_codes(np.searchsorted(numbers, values), [known.get(n, str(n)) for n in numbers])
