"""What a cluster wants of a job: one small TOML file a site, with its sources in its head.

sites/perlmutter.toml    modules and setup -> environment -> launch line -> what sbatch is asked for a node
my-cluster.toml          the same, by path: copy the nearest one
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec

from hpcpar.errors import PlanError

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of node of a cluster, and how a job gets it and starts on it."""

    about: str
    device: str = "cpu"  # run.device of a job here
    ranks: Count = 0  # a node at most: its GPUs, or its cores; 0 = not known
    cores: Count = 0  # that Slurm gives a rank; 0 = --cpus-per-task decides
    sbatch: tuple[str, ...] = ()  # options of every job
    needs: tuple[str, ...] = ()  # options that sbatch refuses to be without, such as account
    setup: tuple[str, ...] = ()  # lines of shell before the launch: modules
    environment: dict[str, str] = {}
    launch: tuple[str, ...] = ()  # the launcher and its options; () = found and tried in the job


def names() -> list[str]:
    """The sites that come with hpcpar."""
    return sorted(p.name.removesuffix(".toml") for p in resources.files("hpcpar.launch").joinpath("sites").iterdir())


def load(site: str) -> Site:
    """A site by name, or a file of one's own; raises PlanError where there is none or a key is wrong."""
    if site in names():
        text = resources.files("hpcpar.launch").joinpath("sites", f"{site}.toml").read_text()
    else:
        path = Path(site)
        if path.suffix != ".toml" or not path.is_file():
            raise PlanError(f"--site {site}: neither a file of TOML nor one of {', '.join(names())}")
        text = path.read_text()
    try:
        return msgspec.convert(tomllib.loads(text), Site)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as e:
        raise PlanError(f"--site {site}: {e}; a site has {', '.join(Site.__struct_fields__)}") from None
