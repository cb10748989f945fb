"""Write names.txt: what the installed, real cupy offers and with which parameters.

    python -m venv V; V/bin/pip install cupy-cuda13x; V/bin/python tests/standin/names.py > tests/standin/names.txt

`import cupy` needs neither a driver nor a GPU, so this runs anywhere.
"""

from __future__ import annotations

import inspect
import platform
import re

import cupy
import cupyx
import numpy as np

PLACES = {
    "cupy": cupy,
    "cupy.ndarray": cupy.ndarray,
    "cupy.ufunc": cupy.ufunc,
    "cupy.linalg": cupy.linalg,
    "cupy.random": cupy.random,
    "cupy.cuda": cupy.cuda,
    "cupy.cuda.runtime": cupy.cuda.runtime,
    "cupy.cuda.Device": cupy.cuda.Device,
    "cupy.cuda.Stream": cupy.cuda.Stream,
    "cupy.cuda.Event": cupy.cuda.Event,
    "cupy.cuda.MemoryPool": cupy.cuda.MemoryPool,
    "cupy.cuda.MemoryPointer": cupy.cuda.MemoryPointer,
    "cupy.cuda.PinnedMemoryPool": cupy.cuda.PinnedMemoryPool,
    "cupyx": cupyx,
}


def written(f: object) -> str | None:
    """The parameters as they stand in the first line of a compiled function's docstring: types are cut off."""
    found = re.match(r"[\w.]+\((.*?)\)(\s*->.*)?$", (getattr(f, "__doc__", None) or "").strip().split("\n")[0])
    if not found:
        return None
    parts = [re.sub(r"^.*?(\*{0,2}\w+)(=.*)?$", r"\1\2", part.strip()) for part in found[1].split(", ")]
    return "(" + ", ".join(p for p in parts if p) + ")"


def signature(f: object) -> str | None:
    """The parameters and their defaults, without annotations."""
    try:
        known = inspect.signature(f)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return written(f)
    plain = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else p.default if _plain(p.default) else None)
        for p in known.parameters.values()
    ]
    return str(inspect.Signature(plain))


def _plain(x: object) -> bool:
    return x is None or isinstance(x, bool | int | float | str)


def main() -> None:
    """Print the sections."""
    print(f"# cupy {cupy.__version__} beside numpy {np.__version__}, Python {platform.python_version()}; written by names.py")
    for place, of in PLACES.items():
        special = {"__array__", "__array_ufunc__", "__array_function__", "__cuda_array_interface__", "__dlpack__", "__dlpack_device__"}
        names = [n for n in dir(of) if not n.startswith("_") or (place == "cupy.ndarray" and n in special)]
        print(f"\n[{place}]")
        for n in names:
            f = getattr(of, n, None)
            parameters = signature(f) if callable(f) and not inspect.isclass(f) and not isinstance(f, cupy.ufunc) else None
            print(n + (parameters or ""))


if __name__ == "__main__":
    main()
