"""Every figure of docs/figures.md: makes the runs, draws docs/figures/*.png and writes the text, numbers from the traces.

    python analysis/figures.py [NAME ...] [--out DIR] [--docs DIR]      all of NAMES; five minutes on two cores

`make figures` runs it. A name that is given alone renews its picture and its section, and leaves the others as they are.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcpar.errors import PlanError

NAMES = ("bubbles", "scaling", "memory", "volumes", "sync_modes", "expert_balance")
MORE = ("compression", "uneven")  # of minutes more: by name
COLOURS = 48  # of a picture
ROOT = Path(__file__).parents[1]
HEAD = """# Figures

Made by `make figures` from runs that it makes itself; every number is from their traces. `python analysis/NAME.py RUN ...` draws the same
of your own runs, `--make` makes them. Times are those of the machine that drew them: two cores, and busy with other things too.
"""


def main() -> None:
    """Make the runs, then draw and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *NAMES, *MORE], metavar="NAME", help=f"of {', '.join(NAMES + MORE)}")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "figures", metavar="DIR", help="the runs (default: runs/figures)")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", metavar="DIR", help="figures.md and figures/ (default: docs)")
    parser.add_argument("--steps", type=int, metavar="N", help="of each run, instead of what each script takes")
    args = parser.parse_args()
    try:
        draw(args.names or NAMES, args.out, args.docs, args.steps)
    except PlanError as e:
        parser.exit(2, f"figures: {e}\n")


def draw(names: Any, out: Path, docs: Path, steps: int | None = None) -> None:
    """Draw the figures of these names and write their sections; scripts that make the same runs share them."""
    (docs / "figures").mkdir(parents=True, exist_ok=True)
    made: dict[Callable[..., list[Path]], list[Path]] = {}
    page = docs / "figures.md"
    parts = sections(page.read_text()) if page.exists() else {}
    for name in names:
        script = importlib.import_module(name)
        if script.make not in made:
            made[script.make] = script.make(out / name, steps or script.STEPS)
        rows = script.rows(made[script.make])
        script.picture(rows, docs / "figures" / f"{name}.png")
        slim(docs / "figures" / f"{name}.png")
        parts[name] = section(name, script, rows)
        page.write_text(HEAD + "".join(f"\n{parts[n]}" for n in (*NAMES, *MORE) if n in parts))
        print(f"{docs / 'figures' / name}.png: {script.finding(rows)}", file=sys.stderr, flush=True)


def slim(path: Path) -> None:
    """Rewrite a PNG with a palette: line art needs no more, and takes a third of the bytes."""
    from PIL import Image

    with Image.open(path) as whole:
        few = whole.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def section(name: str, script: Any, rows: Any) -> str:
    """A figure's finding, picture, explanation and table."""
    what, *rest = re.split(r"\n\n", script.__doc__.strip())
    prose = "\n\n".join(part for part in rest if not part.startswith(" "))
    return f"## {name}\n\n{what}\n\n**{script.finding(rows)}.**\n\n![{what}](figures/{name}.png)\n\n{prose}\n\n{script.table(rows)}\n"


def sections(text: str) -> dict[str, str]:
    """The sections of a page by name."""
    return {part.split("\n", 1)[0]: "## " + part.rstrip("\n") + "\n" for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]}


if __name__ == "__main__":
    main()
