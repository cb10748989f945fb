"""The times and bytes of each layer of a model on one machine, as a file: measured once, then partitioned and emulated.

    samples = 2  precision = "float32"  rounds = 9
    [machine]        where they were measured
    [[layers]]       name, kind, F_s, I_s, W_s, output_bytes, stash_bytes, parameter_bytes, optimizer_bytes      in order of the forward
    [config.model]   the whole description of the run that was measured

All are those of one microbatch of `samples` samples on one rank.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from hpcpar.errors import PlanError

Positive = Annotated[int, msgspec.Meta(ge=1)]
Bytes = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: every key must be there, and no other."""


class Layer(_Table, frozen=True):
    """One layer: seconds of the three passes, and bytes.

    output_bytes       of the activation that the next layer gets; its gradient has as many; 0 for the head
    stash_bytes        of what the forward saves for the backward
    parameter_bytes    of the weights of one version; the gradients have as many. A tied weight counts in the embedding and in the head
    optimizer_bytes    of the optimizer's state
    """

    name: str
    kind: Literal["embedding", "block", "head"]
    F_s: Seconds
    I_s: Seconds
    W_s: Seconds
    output_bytes: Bytes
    stash_bytes: Bytes
    parameter_bytes: Bytes
    optimizer_bytes: Bytes

    @property
    def compute_s(self) -> float:
        """T_l: forward and backward of one microbatch."""
        return self.F_s + self.I_s + self.W_s


class Machine(_Table, frozen=True):
    """Where the times were measured."""

    host: str
    device: str
    threads: Positive  # of BLAS
    copy_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)]  # in memory: what a message between ranks of this machine is


class LayerTimes(_Table, frozen=True):
    """A profile: the layers in order of the forward, for microbatches of `samples` samples."""

    samples: Positive
    precision: Literal["float32", "float64"]
    rounds: Positive  # of which the times are medians
    machine: Machine
    layers: Annotated[tuple[Layer, ...], msgspec.Meta(min_length=1)]
    config: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, path: str | Path) -> LayerTimes:
        """Read a profile file; raises PlanError where it cannot be read or is damaged."""
        remedy = "measure it again with `hpcpar profile`"
        try:
            found = msgspec.convert(tomllib.loads(Path(path).read_text()), cls)
        except OSError as e:
            raise PlanError(f"cannot read the profile {path}: {e.strerror}; write one with `hpcpar profile`") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
            raise PlanError(f"the profile {path} is not TOML: {e}; {remedy}") from None
        except msgspec.ValidationError as e:
            text, _, place = str(e).partition(" - at `$")
            where = place.rstrip("`").lstrip(".") or "the file"
            raise PlanError(f"the profile {path} is damaged at {where}: {text[:1].lower()}{text[1:]}; {remedy}") from None
        found._check(path)
        return found

    def write(self, path: str | Path) -> None:
        """Write the profile as TOML; raises PlanError where the file cannot be written."""
        import tomli_w

        try:
            Path(path).write_text(tomli_w.dumps(msgspec.to_builtins(self)))
        except OSError as e:
            raise PlanError(f"cannot write the profile {path}: {e.strerror}") from None

    def _check(self, path: str | Path) -> None:
        kinds = [layer.kind for layer in self.layers]
        blocks = self.config.get("model", {}).get("layers")
        if kinds != ["embedding", *["block"] * (len(kinds) - 2), "head"]:
            raise PlanError(f"the profile {path} holds layers of kinds {kinds}; a model is an embedding, blocks and a head, in this order")
        if len(kinds) - 2 != blocks:
            raise PlanError(f"the profile {path} holds {len(kinds) - 2} blocks, its config.model.layers says {blocks}; measure it again")
        total = sum(layer.compute_s for layer in self.layers)
        if not 0 < total < math.inf:  # not-a-number too
            raise PlanError(f"the profile {path} holds {total} s of all layers, which is no time; measure it again with `hpcpar profile`")
