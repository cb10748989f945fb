"""The array text in the hands of a device: a stand-in for CuPy that has only CuPy's names and converts nothing by itself."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcpar.ops import attention

TESTS = Path(__file__).parents[2]
LIMIT = {"float64": 1e-12, "float32": 2e-5}


def cases():
    spec = importlib.util.spec_from_file_location("op_cases", TESTS / "gpu" / "cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.CASES)


@pytest.fixture
def cupy(monkeypatch):
    """The stand-in under the name cupy; what was there before comes back."""
    mine = ("cupy", "cupyx")
    before = {n: sys.modules.pop(n) for n in list(sys.modules) if n.partition(".")[0] in mine}
    monkeypatch.syspath_prepend(str(TESTS / "standin"))
    yield importlib.import_module("cupy")
    for n in [n for n in sys.modules if n.partition(".")[0] in mine]:
        del sys.modules[n]
    sys.modules.update(before)


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("tile", [8, 512])
@pytest.mark.parametrize("case", cases(), ids=lambda f: f.__name__)
def test_a_device_gives_what_the_kernels_give(cupy, monkeypatch, case, tile, dtype):
    monkeypatch.setattr(attention, "DEVICE_TILE", tile)
    expected, found = case(lambda x: x, dtype), case(cupy.asarray, dtype)
    assert found.keys() == expected.keys()
    for name, a in expected.items():
        b = found[name]
        assert isinstance(b, cupy.ndarray) or a.ndim == 0, f"{name} left the device"
        b = b if isinstance(b, np.ndarray) else b.get()
        assert b.dtype == a.dtype and b.shape == a.shape, name
        assert np.abs(a - b).max(initial=0) <= LIMIT[dtype] * np.abs(a).max(initial=0), name
