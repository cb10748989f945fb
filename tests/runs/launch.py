"""Whole runs as a user starts them: `mpirun -n N hpcpar ...` in a process of its own, with a time limit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
SMALL = {"model.layers": 4, "model.width": 16, "model.heads": 2, "model.context": 16, "train.steps": 4, "train.batch": 8, "run.threads": 1}


def mpirun() -> str:
    """The launcher beside this interpreter, else that of the PATH."""
    return shutil.which("mpirun", path=f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}") or "mpirun"


@dataclass
class Done:
    """What a finished process left."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> list[str]:
        """The lines of hpcpar's own on stderr."""
        return [line for line in self.err.splitlines() if line.startswith("hpcpar:")]


def text(folder: Path, letters: str = "abcdefgh \n", size: int = 6000) -> Path:
    """A text file to train on."""
    path = folder / "corpus.txt"
    path.write_text("".join(np.random.default_rng(3).choice(list(letters), size)))
    return path


def configuration(folder: Path, **settings: Any) -> Path:
    """A configuration file of a small run; settings are named table__key."""
    tables: dict[str, dict[str, Any]] = {"data": {"source": str(text(folder))}}
    for name, value in {**SMALL, **{k.replace("__", "."): v for k, v in settings.items()}}.items():
        table, key = name.split(".")
        tables.setdefault(table, {})[key] = value
    import tomli_w

    path = folder / "run.toml"
    path.write_text(tomli_w.dumps(tables))
    return path


def hpcpar(
    *arguments: Any,
    ranks: int = 1,
    timeout: float = 90,
    program: tuple[str, ...] = ("-m", "hpcpar"),
    options: tuple[str, ...] = (),
    **env: str,
) -> Done:
    """Run `hpcpar ARGUMENTS` on some ranks; `options` are the launcher's, which then starts one rank too."""
    launcher = [mpirun(), *options, "-n", str(ranks)] if ranks > 1 or options else []
    command = [*launcher, sys.executable, *program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **env}, errors="replace")
    return Done(done.returncode, done.stdout, done.stderr)


def compare(a: Path, b: Path) -> dict[str, Any]:
    """`hpcpar compare A B --json`."""
    done = hpcpar("compare", a, b, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
