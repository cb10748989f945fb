"""Weights to and from other programs: a checkpoint as safetensors and config.json, and such a folder as a checkpoint.

    checkpoints/step00000600/  --export-->  DIR/model.safetensors, DIR/config.json
    DIR                        --import-->  RUN/config.toml, RUN/checkpoints/step00000000/       weights alone

One array at a time is in memory, on both ways. Nothing is rounded: float64 stays float64; halves and brain floats are read as float32.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar import config
from hpcpar.checkpoint import safetensors
from hpcpar.checkpoint.boxes import whole
from hpcpar.checkpoint.layouts import LAYOUTS, layout_of
from hpcpar.checkpoint.layouts.place import Place
from hpcpar.checkpoint.manifest import CheckpointError, steps
from hpcpar.checkpoint.read import WEIGHTS, Checkpoint
from hpcpar.checkpoint.store import Tensor, commit, discard, prepare, write_part
from hpcpar.config import Config, Model, Train
from hpcpar.errors import PlanError
from hpcpar.nn.describe import parameters

SINGLE, INDEX, SETTINGS = "model.safetensors", "model.safetensors.index.json", "config.json"
READERS = {"format": "pt"}  # the order (out, in); Hugging Face's readers take no file that does not say it


def export(at: Checkpoint, target: Path) -> Path:
    """Write the weights of a checkpoint, with Hugging Face's names, to F.safetensors or a folder, and config.json beside them.

    Returns the file. Raises PlanError for a model that no layout holds or a file that is there, OSError where one cannot be written.
    """
    model = config.build(at.fields["config"]).model
    layout = layout_of(model)
    file = target if target.suffix == ".safetensors" else target / SINGLE
    beside = file.with_name(SETTINGS)
    for there in (file, beside):
        if there.exists():
            raise PlanError(f"--export {target}: {there} exists; name another folder")
    file.parent.mkdir(parents=True, exist_ok=True)
    places: dict[str, Place] = layout.places(model)
    dtype = at.dtype(WEIGHTS, "tokens.weight").newbyteorder("=")
    shapes = {name: _shape(place, [at.shape(WEIGHTS, n) for n in place.parts]) for name, place in places.items()}

    def read(name: str) -> np.ndarray:
        place = places[name]
        parts = [at.read(WEIGHTS, n) for n in place.parts]
        one = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return (one.T if place.turned else one).astype(dtype, copy=False)

    safetensors.write(file, {name: (dtype, shape) for name, shape in shapes.items()}, read, READERS)
    settings = {**layout.settings(model), "dtype": dtype.name, "bos_token_id": None, "eos_token_id": None, "use_cache": True}
    beside.write_text(json.dumps(settings, indent=2) + "\n")
    return file


def _shape(place: Place, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    rows = (sum(s[0] for s in shapes), *shapes[0][1:])
    return rows[::-1] if place.turned else rows


class Foreign:
    """The weights of a folder (or one file) in a layout of another program, under the names of here."""

    def __init__(self, source: Path):
        self.source = source
        folder = source if source.is_dir() else source.parent
        settings = _json(folder / SETTINGS)
        kind = settings.get("model_type")
        if kind not in LAYOUTS:
            raise PlanError(f"{folder / SETTINGS} has model_type = {kind!r}, known is {' or '.join(map(repr, LAYOUTS))}")
        layout = LAYOUTS[kind]
        self.model: Model = config.build(config.tables(Config(model=layout.described(settings)))).model  # the numbers are others' too
        self._places: dict[str, Place] = layout.places(self.model)
        self._files = self._find(layout.PREFIX)
        ignored = {"lm_head.weight"} if self.model.tied else set()  # then it is the embedding once more
        unknown = sorted(n for n in self._files if n not in self._places and n not in ignored and not n.endswith(layout.IGNORED))
        missing = sorted(n for n in self._places if n not in self._files)
        if unknown or missing:
            what = f"holds {unknown[0]}, which a {kind} of this config.json has not" if unknown else f"holds no {missing[0]}"
            raise PlanError(f"{source} {what}; is config.json that of these weights?")
        kinds = {self._files[n][0].dtype(self._files[n][1]) for n in self._places}
        self.precision = "float64" if "F64" in kinds else "float32"
        self._shapes = {n: p.shape for n, p in parameters(self.model).items()}
        for name, place in self._places.items():
            file, own = self._files[name]
            want = _shape(place, [self._shapes[n] for n in place.parts])
            if file.shape(own) != want:
                raise PlanError(f"{file.path}: {own} is {file.shape(own)}, config.json says {want}; is it that of these weights?")

    def _find(self, prefix: str) -> dict[str, tuple[safetensors.File, str]]:
        """{name: (file, name in the file)}; files of the model without its head leave the prefix out."""
        if self.source.is_dir():
            index = self.source / INDEX
            names = sorted(set(_json(index)["weight_map"].values())) if index.exists() else [SINGLE]
            files = [safetensors.File(self.source / name) for name in names]
        else:
            files = [safetensors.File(self.source)]
        bare = not any(n.startswith(prefix) for file in files for n in file.about)
        return {f"{prefix}{n}" if bare and n != "lm_head.weight" else n: (file, n) for file in files for n in file.about}

    def tensors(self) -> Iterator[Tensor]:
        """Every parameter of here once, whole."""
        for name, place in self._places.items():
            file, own = self._files[name]
            values = file.read(own)
            values = values.T if place.turned else values
            at = 0
            for part in place.parts:
                shape = self._shapes[part]
                yield WEIGHTS, part, shape, whole(shape), np.ascontiguousarray(values[at : at + shape[0]], self.precision)
                at += shape[0]


def take_in(source: Path, run: Path) -> Path:
    """Make the folder of a run with one checkpoint, of step 0 and without optimizer state, from weights of another program.

    Returns the checkpoint. Raises PlanError for what cannot be read as a model of here, or a folder that holds a run.
    """
    if steps(run / "checkpoints"):
        raise PlanError(f"{run} already holds checkpoints; import into another folder")
    foreign = Foreign(source)
    described = Config(model=foreign.model, train=Train(precision=foreign.precision))  # type: ignore[arg-type]
    fields = {
        "step": 0,
        "applied": dict.fromkeys(parameters(foreign.model), 0),
        "config": config.tables(described),
        "imported": str(source),
    }
    temporary = prepare(run / "checkpoints", 0)
    try:
        entry = write_part(temporary, 0, foreign.tensors())
    except BaseException:
        discard(temporary)
        raise
    path = commit(temporary, [entry], **fields)
    config.save(described, run / "config.toml")
    return path


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except OSError as e:
        raise CheckpointError(f"{path}: {e.strerror}; weights come with a config.json") from None
    except ValueError:
        raise CheckpointError(f"{path} is no JSON; get the file again") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds no JSON object; get the file again")
    return found
