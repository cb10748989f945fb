"""The reader: a folder becomes a Trace, as far as its files go; what is missing is named, never zeros.

    trace = hpcpar.trace.open("runs/first")
    trace.ranks, trace.missing        4, {}
    trace.events(2)                   (n,) EVENT, start and end on the clock of the run
    trace.all_events()                (n,) of all ranks, with a column `rank`
    trace.messages().pairs            (n,) MESSAGE: which receive got which send
    trace.frame()                     the events as a pandas DataFrame, where pandas is installed

Opening reads every file once: to know which rows can be believed, and to put the clocks on one (clocks.py).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcpar.errors import PlanError
from hpcpar.trace import schema, seal
from hpcpar.trace.clocks import Clocks
from hpcpar.trace.messages import MEETING, Ends, Messages, ends_of, matched
from hpcpar.trace.rank_file import DAMAGE, RankFile, sessions_of

if TYPE_CHECKING:
    from pandas import DataFrame

OTHERS = ("memory", "metrics", "clock", "pairs")
KEPT_BYTES = 768 << 20  # of events that a Trace keeps, so that several analyses read them once
SMALL_BYTES = 1 << 18  # of another table, up to which it is kept: to open its file again costs more


@dataclass
class _Read:
    """What one pass over the files found, by rank."""

    reach: dict[int, dict[str, int]] = field(default_factory=dict)  # rows that can be believed
    starts: dict[int, np.ndarray] = field(default_factory=dict)  # (sessions,) SESSION
    points: dict[int, np.ndarray] = field(default_factory=dict)  # (n,) CLOCK
    sealed: frozenset[int] = frozenset()  # files that are as they were written
    ends: list[Ends] = field(default_factory=list)
    kept: OrderedDict[int, np.ndarray] = field(default_factory=OrderedDict)  # events, as far as they find room
    small: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)  # other tables of a rank, where they are small


class Trace:
    """The trace of a run.

    ranks          how many ranks the run had
    present        those whose files can be read, ascending
    missing        {rank: why} of the others
    gaps           {rank: what} is missing of those present: cut short, damaged, of an older schema
    lacks          the fields of an event that some rank's schema did not have: -1 (NONE for an operation or axis) is all they hold
    description    config, hosts, versions, machine, mpi as the run stored them
    clocks         facts of the clocks: what was checked, the residual, what was put right
    """

    def __init__(
        self, folder: Path, ranks: int, description: dict[str, Any], missing: dict[int, str], indexed: bool, sealed: frozenset[int]
    ):
        self.folder, self.ranks, self.description, self.indexed = folder, ranks, description, indexed
        self.gaps: dict[int, str] = {}
        self.lacks: set[str] = set()
        self._read = _Read(sealed=sealed)
        for rank in [r for r in range(ranks) if r not in missing]:
            try:
                self._scan(rank)
            except PlanError as e:
                missing[rank] = str(e)
        self.missing = dict(sorted(missing.items()))
        self.present = tuple(r for r in range(ranks) if r not in missing)
        messages = matched(self._read.ends)
        meetings = np.concatenate([np.empty(0, MEETING), *(e.meetings for e in self._read.ends)])
        self._read.ends.clear()  # they take as much room as the events
        self._clocks = Clocks(self._read.points, {r: len(s) for r, s in self._read.starts.items()}, messages, meetings)
        self.clocks = self._clocks.facts
        for rank, events in self._read.kept.items():
            self._correct(rank, "events", events, ("start", "end"))
            events.flags.writeable = False  # it is handed out again
        self._messages: Messages | None = None

    def events(self, rank: int) -> np.ndarray:
        """The events of a rank (n,) EVENT in the order of recording, corrected to the clock of the run; read-only.

        Raises PlanError for a rank that is missing.
        """
        kept = self._read.kept
        if rank not in kept:
            events = self._rows(rank, "events", ("start", "end"))
            events.flags.writeable = False
            while kept and sum(e.nbytes for e in kept.values()) + events.nbytes > KEPT_BYTES:
                kept.popitem()  # the newest: whoever goes through all ranks again begins with the oldest
            kept[rank] = events
        return kept[rank]

    def all_events(self) -> np.ndarray:
        """The events of all readable ranks (n,) with a column `rank` before those of EVENT, ascending in rank."""
        plain = np.dtype([("rank", "i4"), *((name, schema.EVENT[name]) for name in schema.EVENT.names or ())])
        out = np.empty(sum(self._read.reach[r]["events"] for r in self.present), plain)
        at = 0
        for rank in self.present:
            events = self.events(rank)
            rows = out[at : at + len(events)]
            rows["rank"] = rank
            for name in schema.EVENT.names or ():
                rows[name] = events[name]
            at += len(events)
        return out

    def memory(self, rank: int) -> np.ndarray:
        """The memory samples of a rank (n,) MEMORY, corrected to the clock of the run."""
        return self._rows(rank, "memory", ("time",))

    def metrics(self, rank: int) -> np.ndarray:
        """The metrics of a rank (n,) METRIC."""
        return self._rows(rank, "metrics")

    def clock(self, rank: int) -> np.ndarray:
        """The clock points of a rank (n,) CLOCK."""
        return self._rows(rank, "clock")

    def pairs(self, rank: int) -> np.ndarray:
        """What a rank gave to each peer in the exchanges of experts (n,) PAIR; empty where there were none."""
        return self._rows(rank, "pairs")

    def sessions(self, rank: int) -> np.ndarray:
        """The sessions of a rank (n,) SESSION: where each start of the run begins."""
        return self._read.starts[rank]

    def messages(self) -> Messages:
        """The sends and receives that belong together, on the clock of the run, ascending in `received`."""
        if self._messages is None:  # those that were matched to find the clocks took as much room as a third of the events
            events = ((rank, self.events(rank)) for rank in self.present)
            found = matched([ends_of(rank, rows, sessions_of(self._read.starts[rank]["events"], len(rows))) for rank, rows in events])
            self._messages = Messages(found.pairs[np.argsort(found.pairs["received"], kind="stable")], found.alone)
        return self._messages

    def frame(self) -> DataFrame:
        """`all_events` as a pandas DataFrame, the enums as categories with their names; raises PlanError where there is no pandas."""
        from hpcpar.trace.frame import frame

        return frame(self.all_events())

    def _scan(self, rank: int) -> None:
        """Read a rank's file once: what of it can be believed, its ends of messages, and its events where there is room for them."""
        with RankFile(self.folder / schema.file_name(rank)) as file:
            tables, why = file.tables(rank in self._read.sealed)
            said = [why] if why else []
            if file.lacks:
                said.append(f"schema {file.version} has no {', no '.join(file.lacks)}")
            if not file.complete:
                said.append("was not closed: the run was killed, or goes on")
            self.lacks.update(file.lacks)
        read, events = self._read, tables["events"]
        read.reach[rank] = {name: len(rows) for name, rows in tables.items()}
        read.small.update({(rank, name): tables[name] for name in OTHERS if tables[name].nbytes <= SMALL_BYTES})
        read.starts[rank] = tables["sessions"] if len(tables["sessions"]) else np.zeros(1, schema.SESSION)
        read.points[rank] = tables["clock"]
        read.ends.append(ends_of(rank, events, sessions_of(read.starts[rank]["events"], len(events))))
        if said:
            self.gaps[rank] = "; ".join(said)
        if sum(e.nbytes for e in read.kept.values()) + events.nbytes <= KEPT_BYTES:
            read.kept[rank] = events

    def _correct(self, rank: int, name: str, rows: np.ndarray, fields: tuple[str, ...]) -> None:
        sessions = sessions_of(self._read.starts[rank][name], len(rows))
        for column in fields:
            times = np.ascontiguousarray(rows[column])
            self._clocks.apply(rank, sessions, times)
            rows[column] = times

    def _rows(self, rank: int, name: str, fields: tuple[str, ...] = ()) -> np.ndarray:
        """The rows of a table that can be believed, `fields` on the clock of the run."""
        if rank in self.missing:
            raise PlanError(f"rank {rank}: {self.missing[rank]}")
        small = self._read.small.get((rank, name))
        if small is not None:
            rows = small.copy()
        else:
            with RankFile(self.folder / schema.file_name(rank)) as file:
                rows = file.rows(name, self._read.reach[rank][name])
        if fields:
            self._correct(rank, name, rows, fields)
        return rows


def open(folder: str | Path) -> Trace:
    """Open the trace of a run; a missing or damaged rank is named in `missing`.

    Raises PlanError if the folder holds no trace, or one whose clocks cannot be put on one.
    """
    folder = Path(folder)
    found = sorted(int(p.name.split(".")[1]) for p in folder.iterdir() if _is_rank(p.name)) if folder.is_dir() else []
    index = _index(folder / schema.INDEX)
    ranks, description = index or (1 + max(found, default=-1), {})
    missing, sealed = {}, set()
    for rank in [r for r in found if r < ranks or not index]:  # beyond them: of an earlier plan with more ranks
        try:
            path = folder / schema.file_name(rank)
            if seal.holds(path):
                sealed.add(rank)
                if index and description:
                    continue
            elif not seal.survives(lambda path=path: RankFile(path).tables()):  # type: ignore[misc]
                raise PlanError(f"{path.name} cannot be read: it is damaged so that HDF5 fails at it")
            with RankFile(path) as file:
                description = description or file.description
                ranks = ranks if index else max(ranks, file.ranks)
        except PlanError as e:
            missing[rank] = str(e)
    for rank in sorted(set(range(ranks)) - set(found)):
        missing[rank] = f"{schema.file_name(rank)} is missing"
    trace = Trace(folder, ranks, description, missing, index is not None, frozenset(sealed)) if len(missing) < ranks else None
    if trace is None or not trace.present:
        why = "; ".join(missing[r] for r in sorted(missing)[:3])
        raise PlanError(f'{folder} holds no trace that can be read ({why or "no trace.h5"}); a run leaves one with run.trace = "full"')
    return trace


def _index(path: Path) -> tuple[int, dict[str, Any]] | None:
    """The number of ranks and the description, or None where there is no index that can be read (a run that was killed early)."""

    def read() -> tuple[int, dict[str, Any]] | None:
        import h5py

        try:
            with h5py.File(path, "r", locking=False) as file:
                version, ranks, text = int(file.attrs["schema"]), int(file.attrs["ranks"]), file["description"][()].decode()
                sound = version < 2 or file.attrs["crc"] == schema.header_crc(version, -1, ranks, text)
                return (ranks, dict(json.loads(text))) if sound else None
        except DAMAGE:
            return None

    return read() if seal.holds(path) or (path.is_file() and seal.survives(read)) else None


def _is_rank(name: str) -> bool:
    parts = name.split(".")
    return len(parts) == 3 and parts[0] == "trace" and parts[1].isdigit() and parts[2] == "h5"
