"""The stand-in for cupy finds what a GPU would not forgive: mixed arrays, names that do not exist, memory handed out too early."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

REFUSED: dict[str, Callable[[ModuleType, Any, np.ndarray], Any]] = {
    "asarray": lambda xp, a, h: np.asarray(a),
    "array of arrays": lambda xp, a, h: np.array([a, a]),
    "device + host": lambda xp, a, h: a + h,
    "host + device": lambda xp, a, h: h + a,
    "device += host": lambda xp, a, h: a.__iadd__(h),
    "host += device": lambda xp, a, h: h.__iadd__(a),
    "host @ device": lambda xp, a, h: h.T @ a,
    "comparison": lambda xp, a, h: a == h,
    "numpy ufunc, host out": lambda xp, a, h: np.exp(a, out=h),
    "cupy ufunc, host out": lambda xp, a, h: xp.exp(a, out=h),
    "cupy ufunc of host": lambda xp, a, h: xp.maximum(h, 0),
    "cupy function of host": lambda xp, a, h: xp.sum(h),
    "concatenate": lambda xp, a, h: xp.concatenate([a, h]),
    "einsum": lambda xp, a, h: xp.einsum("ij,ij->i", a, h),
    "where": lambda xp, a, h: xp.where(a > 0, h, 0),
    "copyto host": lambda xp, a, h: np.copyto(h, a),
    "set elements": lambda xp, a, h: a.__setitem__(0, h[0]),
    "list": lambda xp, a, h: xp.add(a, [1.0, 2.0, 3.0]),
    "add.at": lambda xp, a, h: np.add.at(a, 0, 1.0),
    "memoryview": lambda xp, a, h: memoryview(a),
    "index": lambda xp, a, h: range(a[0, 0]),
    "where=": lambda xp, a, h: xp.sum(a, where=True),
    "initial=": lambda xp, a, h: a.max(axis=1, initial=0.0),
    "order=": lambda xp, a, h: xp.add(a, a, order="C"),
    "einsum out=": lambda xp, a, h: xp.einsum("ij->i", a, out=a[:, 0]),
    "reduce": lambda xp, a, h: xp.maximum.reduce(a),
    "matmul in place": lambda xp, a, h: a.__imatmul__(a),
    "get into another type": lambda xp, a, h: a.get(out=np.empty(a.shape, np.float64)),
    "set of another type": lambda xp, a, h: a.set(h.astype(np.float64)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refuses(cupy: ModuleType, what: str) -> None:
    a, h = cupy.ones((2, 3), dtype=cupy.float32), np.ones((2, 3), np.float32)
    with pytest.raises((TypeError, ValueError, AttributeError, NotImplementedError)):
        REFUSED[what](cupy, a, h)


def test_a_name_that_the_real_module_lacks(cupy: ModuleType) -> None:
    for of, name in (
        (cupy, "errstate"),
        (cupy, "float128"),
        (cupy.ndarray((2,)), "ctypes"),
        (cupy.cuda, "synchronize"),
        (cupy.exp, "signature"),
    ):
        with pytest.raises(AttributeError):
            getattr(of, name)


def test_a_name_that_only_the_real_module_has(cupy: ModuleType) -> None:
    for of, name in ((cupy, "fuse"), (cupy, "RawKernel"), (cupy.ndarray((2,)), "toDlpack"), (cupy.cuda.Stream(), "begin_capture")):
        with pytest.raises(RuntimeError, match="does not offer"):
            getattr(of, name)


def test_offers_only_real_names(cupy: ModuleType) -> None:
    import cupyx

    table = cupy._names.table()
    places = {
        "cupy": cupy,
        "cupy.ndarray": cupy.ndarray,
        "cupy.ufunc": cupy.ufunc,
        "cupy.cuda": cupy.cuda,
        "cupy.cuda.runtime": cupy.cuda.runtime,
        "cupy.cuda.Stream": cupy.cuda.Stream,
        "cupy.cuda.Event": cupy.cuda.Event,
        "cupy.cuda.Device": cupy.cuda.Device,
        "cupy.cuda.MemoryPool": cupy.cuda.MemoryPool,
        "cupyx": cupyx,
    }
    inside = {"annotations", "finish", "ptr"}  # "from __future__"; the base class's; on the instance of the real streams
    for place, of in places.items():
        extra = {n for n in vars(of) if not n.startswith("_")} - set(table[place]) - inside
        assert not extra, f"{place} has no {sorted(extra)}"


def test_computes_as_numpy_does(cupy: ModuleType) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((5, 7)).astype(np.float32), rng.standard_normal((7, 3)).astype(np.float32)
    a, b = cupy.asarray(x), cupy.asarray(y)
    pairs = [
        (a @ b, x @ y),
        (a.sum(axis=0), x.sum(axis=0)),
        (cupy.exp(a) * np.float64(2), np.exp(x) * np.float64(2)),  # NumPy 2: a float64 scalar widens
        (2 * a - 1, 2 * x - 1),
        (cupy.where(a > 0, a, 0), np.where(x > 0, x, 0)),
        (a[a > 0], x[x > 0]),
        (a[:, ::2].T, x[:, ::2].T),
        (cupy.take(a, cupy.asarray([1, 1, 0]), axis=0), x[[1, 1, 0]]),
        (cupy.einsum("ij,jk->k", a, b), np.einsum("ij,jk->k", x, y)),
        (np.tanh(a), np.tanh(x)),  # dispatched
        (np.mean(a, axis=1), np.mean(x, axis=1)),
        (cupy.add(a, 1, out=cupy.empty_like(a)), x + 1),
    ]
    for device, host in pairs:
        assert type(device) is cupy.ndarray and device.dtype == host.dtype
        assert np.array_equal(device.get(), host)


def test_reductions_and_elements_stay_on_the_device(cupy: ModuleType) -> None:
    a = cupy.arange(6.0).reshape(2, 3)
    for x in (a.sum(), a[1, 2], cupy.max(a), a.argmax()):
        assert type(x) is cupy.ndarray and x.shape == ()
    a[1, 2] += 1
    assert float(a[1, 2]) == 6 and a[1][2] == 6
    view = a[1]
    view *= 2
    assert a.tolist() == [[0, 1, 2], [6, 8, 12]]


def test_copies_travel(cupy: ModuleType) -> None:
    a = cupy.arange(4)
    for b in (pickle.loads(pickle.dumps(a)), copy.deepcopy(a), copy.copy(a), cupy.array(a)):
        b += 1
        assert a.tolist() == [0, 1, 2, 3] and b.tolist() == [1, 2, 3, 4]
    assert cupy.asarray(a) is a and not cupy.shares_memory(a, cupy.array(a))


def test_unwritten_memory_is_seen(cupy: ModuleType) -> None:
    import cupyx

    assert np.isnan(cupy.empty(3).get()).all() and np.isnan(cupy.empty_like(cupy.ones(3)).get()).all()
    assert np.isnan(cupyx.empty_pinned(3, np.float32)).all()


def test_memory_is_counted(cupy: ModuleType) -> None:
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    a = cupy.zeros((10, 100))
    view = a[3]
    assert pool.used_bytes() == before + 8000
    del a
    assert pool.used_bytes() == before + 8000, "a view keeps the memory"
    del view
    assert pool.used_bytes() == before


def test_pending_work_is_noticed(cupy: ModuleType) -> None:
    stream, a = cupy.cuda.get_current_stream(), cupy.zeros(4)
    with pytest.raises(RuntimeError, match="pending work"):
        _ = a.__cuda_array_interface__
    with pytest.raises(RuntimeError, match="pending work"):
        a.__dlpack__()
    stream.synchronize()
    assert a.reshape(2, 2)[0].__cuda_array_interface__["data"][0] == a.data.ptr, "a view is no work"
    b = a + 1  # reads a: whoever writes it must wait
    with pytest.raises(RuntimeError, match="pending work"):
        _ = a.__cuda_array_interface__
    b.get()  # waits for the stream
    _ = a.__cuda_array_interface__
    assert cupy._state.counts.handed_over >= 4 and cupy._state.counts.synchronisations == 1


def test_streams_wait_for_their_own_work_only(cupy: ModuleType) -> None:
    first, second, a = cupy.cuda.Stream(), cupy.cuda.Stream(), cupy.empty(4)
    with first:
        a.fill(1)
    second.synchronize()
    cupy.cuda.get_current_stream().synchronize()
    with pytest.raises(RuntimeError, match="pending work"):
        _ = a.__cuda_array_interface__
    with second, pytest.raises(RuntimeError, match="another stream"):
        a.get()
    second.wait_event(first.record())
    second.synchronize()
    _ = a.__cuda_array_interface__
    with first:
        a.fill(2)
        event = first.record()
        a.fill(3)
    event.synchronize()
    assert not first.done
    with pytest.raises(RuntimeError, match="pending work"):
        _ = a.__cuda_array_interface__
    first.synchronize()
    _ = a.__cuda_array_interface__


def test_copies_on_a_stream_of_their_own(cupy: ModuleType) -> None:
    """What one stream writes, another reads only behind an event; and memory is not freed under a copy."""
    import cupyx

    copies, a, host = cupy.cuda.Stream(non_blocking=True), cupy.ones(4), cupyx.empty_pinned(4)
    here = cupy.cuda.get_current_stream()
    with pytest.raises(RuntimeError, match="another stream"):
        a.get(stream=copies, out=host, blocking=False)
    copies.wait_event(here.record())
    a.get(stream=copies, out=host, blocking=False)
    with pytest.raises(RuntimeError, match="another stream"):
        _ = a + 1  # it is still at work on it
    here.wait_event(copies.record())
    a += 1
    b = cupy.empty(4)
    b.set(host, stream=copies)
    with pytest.raises(RuntimeError, match="another stream"):
        _ = b + 1
    arrived = copies.record()
    here.wait_event(arrived)
    b += 1
    assert host.tolist() == [1] * 4 and b.tolist() == [2] * 4
    copies.synchronize()
    c = cupy.ones(4)
    copies.wait_event(here.record())
    c.get(stream=copies, out=host, blocking=False)
    del c
    with pytest.raises(RuntimeError, match="freed"):
        a += 1
