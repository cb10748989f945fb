"""The stand-in for cupy, imported for one test and forgotten after it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

STANDIN = Path(__file__).parents[2] / "standin"


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The stand-in, also for `import cupy` inside hpcpar; a real cupy comes back after the test."""
    before = {name: m for name, m in sys.modules.items() if name.partition(".")[0] in ("cupy", "cupyx")}
    for name in before:
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(STANDIN))
    import cupy
    import cupyx

    assert Path(cupyx.__file__).is_relative_to(STANDIN)
    yield cupy
    for name in [n for n in sys.modules if n.partition(".")[0] in ("cupy", "cupyx")]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def standin() -> Path:
    """The folder for the PYTHONPATH of a child process."""
    return STANDIN
