"""What the MPI library of this Python is and can do. Run as a program, it prints one JSON object.

The doctor runs it as a child, because starting MPI can end the process: on a login node, or with a library that does not fit.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def facts(gpu_setting: str = "auto") -> dict[str, Any]:
    """mpi4py, the library, its threads and whether it takes device arrays; starts MPI. Raises ImportError or RuntimeError without MPI."""
    import mpi4py
    from mpi4py import MPI

    from hpcpar.comm import device

    levels = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }
    verdict = device.gpu_aware(gpu_setting)
    return {
        "mpi4py": mpi4py.__version__,
        "library": " ".join(MPI.Get_library_version().strip("\0").split("\n")[0].split()),
        "vendor": " ".join((MPI.get_vendor()[0], ".".join(map(str, MPI.get_vendor()[1])))),
        "standard": ".".join(map(str, MPI.Get_version())),
        "path": device.library(),
        "threads": levels[MPI.Query_thread()],
        "gpu_aware": verdict.direct,
        "gpu_reason": verdict.reason,
    }


def main() -> int:
    """Print the facts, or why there are none; exit 0 in both cases."""
    try:
        found = facts()
    except (ImportError, RuntimeError) as e:
        found = {"reason": f"{type(e).__name__}: {e}".split("\n")[0]}
    print("facts " + json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
