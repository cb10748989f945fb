"""The rules of the house, proved on the syntax trees: who may import whom, what never starts by an import, and how long a file may be.

Imports inside functions count; those under `if TYPE_CHECKING:` do not, because they never run.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
HOUSE = ROOT / "hpcpar"
LINES = 350

# A part of the house: what it may import of the house beside itself, `errors` and the root (its version). The longest name that a module
# begins with is its part.
WORK = ["nn", "forms", "ops", "comm", "mesh", "layout", "collectives", "config"]
RUN = [*WORK, "layer_times", "schedule", "trace", "parallel", "optim", "data", "checkpoint"]
EVERY = [*RUN, "groups", "machine", "run", "sim", "plan", "analyse", "draw", "measure", "launch"]
MAY: dict[str, list[str]] = {
    "errors": [],
    "mesh": [],
    "machine": [],  # the file of a machine: measured, then simulated and planned for
    "layer_times": [],  # the file of a profile: measured, partitioned and emulated
    "layout": ["mesh"],
    "collectives": ["layout", "mesh"],
    "config": ["mesh"],
    "schedule": ["config", "mesh"],
    "nn.describe": ["config", "mesh", "layout", "collectives", "schedule.action", "forms"],
    "forms": ["config", "mesh", "layout", "collectives", "schedule.action", "nn.describe"],
    "ops": [],
    "nn": ["config", "layout", "ops"],
    "trace": ["config", "schedule.action"],
    "groups": ["config", "mesh", "schedule", "forms", "trace"],  # who takes part in what a trace holds
    "comm": ["mesh", "layout", "collectives", "ops.array"],
    "parallel": WORK,
    "optim": WORK,
    "data": WORK,
    "checkpoint": WORK,
    "run": RUN,
    "sim": ["config", "mesh", "layout", "collectives", "schedule", "forms", "nn.describe", "ops", "trace"],
    "analyse": ["groups", "trace", "schedule", "forms", "nn.describe", "config", "mesh", "layout", "collectives", "sim"],
    "draw": ["groups", "trace", "schedule", "forms", "config", "mesh", "layout", "collectives"],
    "plan": ["layer_times", "config", "mesh", "schedule", "forms", "sim"],
    "measure": [p for p in EVERY if p != "launch"],
    "launch": [p for p in EVERY if p != "measure"],
    "cli": EVERY,
    "__main__": ["cli"],
}
ARRAYS = {"mesh", "layout", "collectives", "config", "schedule", "forms", "nn.describe", "errors"}  # these never import numpy
MPI = {"comm", "measure", "cli"}  # the only ones that import mpi4py; cli to refuse where there is none
GPU = {"ops", "comm", "run", "measure"}  # the only ones that import cupy; ops in array.py alone
WITHOUT_MPI = ("groups", "schedule", "forms", "trace", "analyse", "draw", "sim", "plan", "cli")  # run where no MPI is installed
PROGRAMS = {"measure.mpi_facts"}  # run with python -m
FRAMEWORKS = re.compile(
    r"\b(" + "|".join(("tor" + "ch", "j" + "ax", "tensor" + "flow", "ker" + "as", "py" + "tor" + "ch")) + r")\b", re.IGNORECASE
)


def modules() -> dict[str, Path]:
    """Every module of the house by its name below hpcpar; the root is ""."""
    found = {}
    for path in sorted(HOUSE.rglob("*.py")):
        parts = path.relative_to(HOUSE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


NAMES = modules()


def part(module: str) -> str:
    """The part of the house that a module belongs to; the module itself where no row names it."""
    rows = [p for p in MAY if module == p or module.startswith(p + ".")]
    return max(rows, key=len, default=module)


def imports(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import that can run, in functions too."""
    tree = ast.parse(path.read_text(), str(path))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    package = ("hpcpar." + module).rstrip(".").split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield node.lineno, whole if whole.removeprefix("hpcpar.") in NAMES else base
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((node.lineno, a.value) for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str))


def allowed(of: str, wanted: str) -> bool:
    """Whether a module of part `of` may import the module `wanted` of the house."""
    if wanted in ("", "errors") or part(wanted) == of or (of == "nn" and part(wanted) == "nn.describe"):
        return True
    return any(wanted == p or wanted.startswith(p + ".") for p in MAY[of])


def test_every_part_has_a_row() -> None:
    tops = {name.split(".")[0] for name in NAMES} - {""}
    assert not tops - set(MAY), f"no row says what {sorted(tops - set(MAY))} may import"


@pytest.mark.parametrize("module", NAMES)
def test_imports_keep_to_the_table(module: str) -> None:
    of, path = part(module), NAMES[module]
    wrong = []
    for line, name in imports(path, module):
        root, _, rest = name.partition(".")
        place = f"{path.relative_to(ROOT)}:{line}"
        if root == "hpcpar" and (module == "" or not allowed(of, rest)):
            wrong.append(f"{place}: {of or 'the root'} may not import {name}")
        if root == "numpy" and of in ARRAYS:
            wrong.append(f"{place}: {of} is arithmetic on shapes and imports no arrays")
        if root == "mpi4py" and of not in MPI:
            wrong.append(f"{place}: only {', '.join(sorted(MPI))} import mpi4py")
        if root in ("cupy", "cupyx") and (of not in GPU or (of == "ops" and module != "ops.array")):
            wrong.append(f"{place}: only ops.array, comm, run and measure import {root}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import hpcpar.mesh", ["hpcpar.mesh"]),
        ("from hpcpar import mesh, __version__", ["hpcpar.mesh", "hpcpar"]),
        ("def f():\n    from hpcpar.comm import world", ["hpcpar.comm.world"]),
        ("from . import action", ["hpcpar.schedule.action"]),
        ("from .action import Kind", ["hpcpar.schedule.action"]),
        ("from ..mesh import Mesh", ["hpcpar.mesh"]),
        ("if TYPE_CHECKING:\n    import mpi4py\nelse:\n    import numpy", ["numpy"]),
        ("import importlib\nimportlib.import_module('mpi4py')", ["importlib", "mpi4py"]),
    ],
)
def test_imports_are_seen(tmp_path: Path, text: str, found: list[str]) -> None:
    path = tmp_path / "x.py"
    path.write_text(text)
    assert [name for _, name in imports(path, "schedule.x")] == found


def test_the_table_is_read_as_meant() -> None:
    assert part("nn.describe") == "nn.describe" and part("nn.block") == "nn" and part("schedule.action") == "schedule"
    assert allowed("trace", "schedule.action") and not allowed("trace", "schedule.lower") and not allowed("trace", "schedule")
    assert allowed("forms", "nn.describe") and not allowed("forms", "nn.block") and allowed("nn", "nn.describe")
    assert allowed("comm", "ops.array") and not allowed("comm", "ops.linear") and not allowed("comm", "run")
    assert not any(allowed("run", p) for p in ("sim", "plan", "analyse", "draw", "measure", "cli"))


def python(code: str) -> str:
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert child.returncode == 0, child.stderr
    return child.stdout


def test_importing_the_house_starts_nothing() -> None:
    loaded = python("import sys, hpcpar; print(*sorted({m.partition('.')[0] for m in sys.modules}))").split()
    assert not {"mpi4py", "cupy", "cupyx", "numpy", "numba", "h5py", "matplotlib"} & set(loaded)


def test_no_module_starts_cuda_and_the_light_ones_need_no_mpi() -> None:
    light = [f"hpcpar.{n}" for n in NAMES if part(n).split(".")[0] in WITHOUT_MPI]
    code = (
        "import sys, importlib\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {'mpi4py', 'cupy', 'cupyx'}:\n"
        "            raise ImportError(f'{name} is not installed here')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        f"for name in {light}:\n"
        "    importlib.import_module(name)\n"
    )
    python(code)


def test_no_framework_is_named() -> None:
    places = [
        *HOUSE.rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "jobs").rglob("*"),
        ROOT / "pyproject.toml",
        ROOT / "Makefile",
    ]
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in places
        if path.is_file() and "__pycache__" not in path.parts
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if FRAMEWORKS.search(line)
    ]
    assert not named, "\n".join(named)


def folder(package: str) -> list[ModuleType]:
    """The imported modules of a folder of the house."""
    return [importlib.import_module(f"hpcpar.{name}") for name in NAMES if name.rpartition(".")[0] == package]


def test_every_schedule_is_in_its_registry() -> None:
    from hpcpar.schedule import SCHEDULES

    declared = {name: family for module in folder("schedule") for name, family in getattr(module, "FAMILIES", {}).items()}
    assert declared and declared == SCHEDULES


def test_every_update_rule_is_in_its_registry() -> None:
    from hpcpar.optim import OPTIMIZERS

    classes = [x for module in folder("optim") for x in vars(module).values() if isinstance(x, type) and x.__module__ == module.__name__]
    rules = {x for x in classes if hasattr(x, "step") and hasattr(x, "state")}
    assert rules and rules == set(OPTIMIZERS.values())


def test_every_gate_is_in_its_registry() -> None:
    from typing import get_args, get_type_hints

    from hpcpar.config import Moe
    from hpcpar.nn.describe import ROUTERS
    from hpcpar.nn.gates import GATES

    gates = [module for module in folder("nn.gates") if hasattr(module, "choose")]
    assert gates and sorted(g.__name__ for g in gates) == sorted(g.__name__ for g in GATES.values())
    assert set(GATES) == set(get_args(get_type_hints(Moe)["gate"]))
    assert {name: gate.ROUTER for name, gate in GATES.items()} == {name: ROUTERS.get(name, ("router",)) for name in GATES}


def test_no_module_is_forgotten() -> None:
    """Every module is imported by another one, or is found by name: a verb, or a program of its own."""
    wanted = {name for module, path in NAMES.items() for _, name in imports(path, module)}
    by_name = {n for n, path in NAMES.items() if path.name == "__init__.py" or n.startswith(("cli.", "__main__")) or n in PROGRAMS}
    lost = [n for n in NAMES if n not in by_name and f"hpcpar.{n}" not in wanted]
    assert not lost, f"no module imports {lost}"


def test_no_file_is_too_long() -> None:
    long = {
        str(p.relative_to(ROOT)): n for d in (HOUSE, ROOT / "tests") for p in d.rglob("*.py") if (n := p.read_text().count("\n")) > LINES
    }
    assert not long, f"longer than {LINES} lines: {long}"
