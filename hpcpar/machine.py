"""What a machine can do, as a file: measured once by `hpcpar bench --out`, under the launcher that runs use.

name = "n1"  device = "cpu"  nodes = 2  ranks = 8  measured = 2026-01-31T12:00:00Z
[compute]          of one rank: alone, and while every rank of the machine computes
[network.inside]   a message between two ranks of one node
[network.across]   and between two nodes; not there for one node
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from hpcpar.errors import PlanError

Positive = Annotated[int, msgspec.Meta(ge=1)]
Rate = Annotated[float, msgspec.Meta(gt=0)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: every key must be there, and no other."""


class Compute(_Table, frozen=True):
    """Rates of one rank, of the best square matrix product and of a copy in memory (read and written bytes both counted)."""

    threads: Positive
    float32_flops_per_s: Rate
    float64_flops_per_s: Rate
    together_float32_flops_per_s: Rate  # of each rank, while all ranks compute: the slowest one
    copy_bytes_per_s: Rate


class Link(_Table, frozen=True):
    """One-way times of a message: seconds = latency_s + bytes / bytes_per_s; both ends wait for it."""

    latency_s: Rate  # of 8 bytes
    bytes_per_s: Rate  # between the two largest sizes
    together_bytes_per_s: Rate  # of each pair, while every rank of two nodes (or of one) has a partner
    sizes: tuple[Positive, ...]  # bytes
    seconds: tuple[Rate, ...]  # medians


class Network(_Table, frozen=True):
    """Links inside a node and across nodes; None where the launch has no such pair."""

    inside: Link | None = None
    across: Link | None = None


class Machine(_Table, frozen=True):
    """A machine as measured: `ranks` on `nodes`, each with `compute`, joined by `network`."""

    name: str
    device: str
    nodes: Positive
    ranks: Positive
    measured: str
    mpi: str
    compute: Compute
    network: Network

    @classmethod
    def read(cls, path: str | Path) -> Machine:
        """Read a machine's file; raises PlanError where it cannot be read or is damaged."""
        try:
            return msgspec.convert(tomllib.loads(Path(path).read_text()), cls)
        except OSError as e:
            raise PlanError(f"cannot read the machine {path}: {e.strerror}; write one with `hpcpar bench --out`") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as e:
            raise PlanError(f"the machine {path} is damaged: {e}; measure it again with `hpcpar bench --out`") from None

    def write(self, path: str | Path) -> None:
        """Write the file; raises PlanError where it cannot be written."""
        import tomli_w

        tables = msgspec.to_builtins(self)
        tables["network"] = {k: v for k, v in tables["network"].items() if v is not None}
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(tomli_w.dumps(tables))
        except OSError as e:
            raise PlanError(f"cannot write the machine {path}: {e.strerror}; name a folder that can be written") from None
