"""Runs that the scripts beside this one make: a description, a folder, and the mpirun beside the interpreter."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hpcpar import config
from hpcpar.config import Config
from hpcpar.errors import PlanError

TIMEOUT_S = 900


def train(folder: Path, name: str, described: Config | dict[str, Any], steps: int | None = None) -> Path:
    """The folder of a run with this description, made now, on as many ranks as its plan says; raises PlanError where it fails.

    `steps` replaces those described, and bounds the warm-up by a quarter of them.
    """
    tables = described if isinstance(described, dict) else config.tables(described)
    if steps is not None:
        train = tables.get("train", {})
        tables = {**tables, "train": {**train, "steps": steps, "warmup": min(train.get("warmup", 20), steps // 4)}}
    whole = config.build(tables)
    out = folder / re.sub(r"[^\w.=]+", "-", name.replace("%", "percent")).strip("-")
    shutil.rmtree(out, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    config.save(whole, folder / "run.toml")
    command = [mpirun(), "-n", str(whole.plan.ranks), sys.executable, "-m", "hpcpar", "train", str(folder / "run.toml"), "--out", str(out)]
    print(f"{name} ...", file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise PlanError(f"the run {name} ended with {done.returncode}: {' '.join(command)}\n{done.stderr}")
    return out


def mpirun() -> str:
    """The launcher of the environment of this interpreter, else that of the PATH."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun") or "mpirun"
