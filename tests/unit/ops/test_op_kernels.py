"""The kernels themselves: the exponential's accuracy, how each is compiled, and that they are loaded only when called."""

import importlib
import pkgutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from numba import njit

import hpcpar.ops.kernels
from hpcpar.ops import attention, cross_entropy, dropout, embedding, gelu, layer_norm, linear, rms_norm, rotary, swiglu, update
from hpcpar.ops.array import Cost, array_module, native, span
from hpcpar.ops.kernels import scalar
from hpcpar.ops.warm import warm


@njit(error_model="numpy")
def exponentials(x, y):
    for i in range(x.size):
        y[i] = scalar.exp(x[i])


def exp(x):
    y = np.empty_like(x)
    exponentials(x, y)
    return y


@pytest.mark.parametrize("dtype,low,high,limit", [(np.float32, -87.2, 87.9, 1e-7), (np.float64, -707.9, 708.9, 2.2e-16)])
def test_exponential(random, dtype, low, high, limit):
    x = np.concatenate([random.uniform(low, high, 300_000), random.uniform(-1, 1, 100_000), np.arange(-80, 80) * np.log(2) / 2]).astype(
        dtype
    )
    expected = np.exp(x.astype(np.longdouble))
    assert float((np.abs(exp(x) - expected) / expected).max()) < limit
    assert exp(np.zeros(1, dtype))[0] == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponential_at_the_ends(dtype):
    big = np.finfo(dtype).max
    y = exp(np.array([-np.inf, -big, -1e4, 1e4, big, np.inf, np.nan], dtype))
    assert not y[:3].any() and np.isfinite(y[3:6]).all() and (y[3:6] > 1e38).all() and np.isnan(y[6])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponential_has_the_same_bits_in_vector_and_scalar_code(random, dtype):
    x = random.uniform(-50, 50, 999).astype(dtype)
    assert np.array_equal(exp(x), [exp(x[i : i + 1])[0] for i in range(x.size)])


def kernels():
    for module in pkgutil.iter_modules(hpcpar.ops.kernels.__path__):
        for name, f in vars(importlib.import_module(f"hpcpar.ops.kernels.{module.name}")).items():
            if hasattr(f, "targetoptions"):
                yield pytest.param(f, id=f"{module.name}.{name}")


@pytest.mark.parametrize("f", list(kernels()))
def test_how_a_kernel_is_compiled(f):
    assert f.targetoptions["nogil"] and f._cache.cache_path, "releases the GIL and is kept on disk"
    assert f.targetoptions.get("fastmath", set()) <= {"reassoc", "nsz"}
    if f.targetoptions.get("fastmath"):
        assert "exp" not in f.py_func.__code__.co_names, "reassociation would undo the exponential's own roundings"


def ticks_during(call):
    """How often this thread runs while another is inside call()."""
    moments, ticks = [], []
    thread = threading.Thread(target=lambda: (moments.append(time.perf_counter()), call(), moments.append(time.perf_counter())))
    thread.start()
    while thread.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0.0005)
    thread.join()
    return sum(moments[0] < t < moments[1] for t in ticks)


def test_kernels_release_the_gil(random):
    g = random.standard_normal(20_000_000)
    update.square_sum(g[:10])
    assert any(ticks_during(lambda: update.square_sum(g)) >= 3 for _ in range(10)), "a busy machine may need several tries"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_warm_compiles_every_kernel(dtype):
    warm(dtype)
    for parameter in kernels():
        f = parameter.values[0]
        if not f.__name__.startswith("_"):  # the private ones are inside these
            assert any(dtype in str(s) for s in f.signatures), f"{parameter.id} was not called for {dtype}"


def test_importing_the_operations_loads_no_compiler_and_no_gpu():
    names = "attention, cross_entropy, dropout, embedding, gelu, layer_norm, linear, rms_norm, rotary, swiglu, update, warm"
    code = f"import sys; from hpcpar.ops import {names}; print([m for m in ('numba', 'cupy', 'mpi4py') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_costs_are_those_of_the_formulas():
    assert linear.cost("F", 5, 7, 3, bias=False) == linear.cost("I", 5, 7, 3) == Cost(2 * 5 * 7 * 3, 4 * (5 * 7 + 7 * 3 + 5 * 3))
    assert linear.cost("W", 5, 7, 3, itemsize=8).bytes == 8 * (5 * 7 + 7 * 3 + 5 * 3 + 3)
    f, i = attention.cost("F", 2, 4, 3, 1, 8), attention.cost("I", 2, 4, 3, 1, 8)
    scores = 2 * 3 * (1 + 2 + 3 + 4)
    assert f.flops == scores * (2 * 2 * 8 + 12) and i.flops == scores * (5 * 2 * 8 + 12) + 2 * 2 * 4 * 3 * 8
    for op, size in (
        (gelu, (6, 5)),
        (swiglu, (6, 5)),
        (dropout, (6, 5)),
        (cross_entropy, (6, 5)),
        (layer_norm, (6, 5)),
        (rms_norm, (6, 5)),
    ):
        work = op.cost("F", *size) + op.cost("I", *size)
        assert work.flops > 0 and work.bytes % 4 == 0 and op.cost("F", *size, itemsize=8).bytes == 2 * op.cost("F", *size).bytes
    assert embedding.cost("I", 3, 4) == rotary.cost("W", 3, 2, 4) == Cost(0, 0) and rotary.cost("F", 3, 2, 4).flops == 3 * 24
    assert update.cost_adamw(10).bytes == 280 and update.cost_sgd(10).bytes == 200


def test_array_facts():
    x = np.zeros((4, 5, 6), np.float32)
    assert array_module(x) is np and native(x) and native(x.astype(np.float64))
    assert not native(x.astype(np.float16)) and not native(np.ma.zeros(3))
    part = span(x[1:, ::2, 3:])
    assert part.size == 2 * 30 + 4 * 6 + 3 and part.ctypes.data == x[1, 0, 3:].ctypes.data and span(x[:0]).size == 0
    part[0] = 7
    assert x[1, 0, 3] == 7
