"""Run the tests of this folder on the ranks of this launch: rank 0 speaks; another rank's output is shown if it failed.

mpirun -n 4 python tests/mpi/run.py [pytest arguments]
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

from mpi4py import MPI

from hpcpar.comm.launcher import check_launcher

check_launcher(os.environ, MPI.COMM_WORLD.Get_size(), MPI.Get_library_version().split("\n")[0])

import pytest  # noqa: E402

here = Path(__file__).parent
chosen = [a for a in sys.argv[1:] if not a.startswith("-") and Path(a.partition("::")[0]).exists()]
arguments = [*(a for a in sys.argv[1:] if a not in chosen), *(chosen or [str(here)])]
arguments += ["--only-mpi", "-p", "no:cacheprovider", "--timeout=120", f"--rootdir={here.parent.parent}"]
rank = MPI.COMM_WORLD.Get_rank()
if rank == 0:
    print(f"--- {MPI.COMM_WORLD.Get_size()} ranks", flush=True)
    code = pytest.main(arguments)
else:
    spoken = io.StringIO()
    with contextlib.redirect_stdout(spoken):
        code = pytest.main(arguments)
    if code not in (0, 5):
        sys.stderr.write(f"--- rank {rank}\n{spoken.getvalue()}")
sys.exit(0 if code == 5 else code)  # 5: no test for this number of ranks
