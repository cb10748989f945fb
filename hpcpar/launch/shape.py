"""How many nodes a plan takes, and how many ranks on each: all alike, because Slurm's --ntasks-per-node is one number."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.config import Config
from hpcpar.errors import PlanError
from hpcpar.launch.site import Site


@dataclass(frozen=True)
class Shape:
    """Nodes and ranks a node; 0 and 0 where Slurm places them."""

    ranks: int
    nodes: int
    per_node: int

    @property
    def options(self) -> list[str]:
        """What sbatch is asked for."""
        if not self.nodes:
            return [f"--ntasks={self.ranks}"]
        return [f"--nodes={self.nodes}", f"--ntasks-per-node={self.per_node}"]


def shape(config: Config, site: Site, named: str, nodes: int | None, per_node: int | None) -> Shape:
    """The shape of a job for a plan at a site, `nodes` and `per_node` as asked for; raises PlanError with both numbers where none is."""
    ranks = config.plan.ranks
    for option, value in (("--nodes", nodes), ("--ntasks-per-node", per_node)):
        if value is not None and value < 1:
            raise PlanError(f"{option} {value}: use at least 1")
    if config.run.device == "cuda" and site.device != "cuda":
        raise PlanError(f'run.device = "cuda", but {named} has {site.device} nodes; use --site generic-gpu, or run.device = "cpu"')
    if nodes is not None and per_node is not None and nodes * per_node != ranks:
        raise PlanError(
            f"the plan needs {ranks} ranks, --nodes {nodes} x --ntasks-per-node {per_node} gives {nodes * per_node}; "
            + _remedy(ranks, nodes, per_node)
        )
    most = per_node or site.ranks or (-(-ranks // nodes) if nodes else 0)
    if not most:
        return Shape(ranks, 0, 0)
    if site.ranks and most > site.ranks:
        each = "one rank a GPU" if site.device == "cuda" else "one rank a core"
        raise PlanError(
            f"--ntasks-per-node {most}, but a node of {named} takes {site.ranks} ranks ({each}); use --ntasks-per-node <= {site.ranks}"
        )
    if nodes is None:
        if per_node is None:
            nodes = next(n for n in range(-(-ranks // most), ranks + 1) if ranks % n == 0)
        else:
            nodes = -(-ranks // per_node)
    if ranks % nodes or ranks // nodes > most:
        what = f"--nodes {nodes}" + (f" of {most} ranks" if ranks % nodes == 0 else "")
        raise PlanError(f"the plan needs {ranks} ranks, which {what} cannot share equally; {_remedy(ranks, nodes, most)}")
    if per_node is not None and nodes * per_node != ranks:
        raise PlanError(f"the plan needs {ranks} ranks, no multiple of --ntasks-per-node {per_node}; {_remedy(ranks, nodes, per_node)}")
    return Shape(ranks, nodes, ranks // nodes)


def _remedy(ranks: int, nodes: int, most: int) -> str:
    """The equal parts of at most `most` ranks whose number of nodes is nearest to the one asked for."""
    fits = [n for n in range(1, ranks + 1) if ranks % n == 0 and ranks // n <= most]
    best = min(fits, key=lambda n: abs(n - nodes))
    return f"use --nodes {best} --ntasks-per-node {ranks // best}, or another plan"
