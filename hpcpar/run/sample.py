"""Text from a checkpoint: the whole model in one process, one token after another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar import checkpoint, config
from hpcpar.errors import PlanError
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.describe import layers
from hpcpar.nn.stage import Stage


class Sampler:
    """The model of a checkpoint, on NumPy."""

    def __init__(self, path: Path):
        at = checkpoint.open(path)
        self.config = config.build(at.fields["config"])
        train = self.config.train
        self.stage = Stage(layers(self.config.model), Frame.of(self.config.model, train.seed, np, train.precision))
        flat = np.zeros(self.stage.map.size, train.precision)
        for name, view in self.stage.map.by_name(flat).items():
            view[...] = at.read("weights", name)
        self.weights = self.stage.map.weights(flat)

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """ids (T,) -> logits of the token that follows (V,); only the last `context` ids count."""
        ids = ids[-self.config.model.context :]
        t = len(ids)
        weights = [dict(w) for w in self.weights]
        if "positions.weight" in weights[0]:
            weights[0]["positions.weight"] = weights[0]["positions.weight"][:t]
        frame = self.stage.frame
        tables = tuple(table[:t] for table in frame.tables) if frame.tables else None
        at = Microbatch(Frame(frame.model, frame.seed, tables), 1, t, training=False)
        return self.stage.logits(ids[None].astype(np.int32), weights, at)[-1]

    def tokens(self, prompt: Any, count: int, temperature: float, seed: int) -> Iterator[int]:
        """`count` ids that follow the prompt: the most likely one at temperature 0, else drawn from softmax(logits / temperature)."""
        vocabulary = self.config.model.vocabulary
        ids = np.asarray(prompt, np.int64)
        if ids.size == 0:
            raise PlanError("--prompt is empty; give at least one character")
        if ids.max() >= vocabulary:
            raise PlanError(f"--prompt has id {ids.max()}, the model knows {vocabulary}; use other characters")
        draw = np.random.Generator(np.random.Philox(seed))
        for _ in range(count):
            z = self.logits(ids).astype(np.float64)
            if temperature:
                p = np.exp((z - z.max()) / temperature)
                chosen = int(draw.choice(vocabulary, p=p / p.sum()))
            else:
                chosen = int(z.argmax())
            ids = np.append(ids, chosen)
            yield chosen
