"""The frozen descriptions of a run: Model, Plan, Train, Data and Run, in one TOML file.

A run is its description: it is stored whole in every trace and checkpoint, and nothing in the environment decides what it could say.

    [model] [plan] [train] [data] [run]   ->   Config   ->   config.toml, complete

Unknown keys are errors that name the key and the nearest known one.
"""

from __future__ import annotations

import difflib
import tomllib
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from hpcpar.errors import PlanError

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)]


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the configuration."""


class Capacity(Description, frozen=True):
    """How many tokens of a group an expert takes, and which are dropped beyond that; the formulas are in nn.gates.capacity."""

    policy: Literal["floor", "ceil", "mesh", "gshard", "deepspeed", "megatron", "tutel"] = "ceil"
    factor: Annotated[float, msgspec.Meta(gt=0)] = 1.25
    evaluation: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # the factor without training; 0 = factor
    minimum: Count | None = None  # tokens; none = the policy's own
    order: Literal["position", "probability", "random"] = "position"  # who keeps a place
    skipped: Literal["hold", "free"] = "hold"  # position: the places of second choices that chance leaves out


class Moe(Description, frozen=True):
    """Mixture of experts: the MLP of every `every`-th block is a router and experts. Routing is over groups of `group` whole samples."""

    experts: Positive = 8
    gate: Literal["noisy-topk", "gshard", "switch", "topk", "sigmoid-bias", "expert-choice", "hash", "balanced"] = "topk"
    k: Positive = 2  # experts a token; on average, where experts choose
    group: Positive = 1  # samples
    every: Positive = 1
    width: Count = 0  # inside an expert; 0 = that of the dense MLP
    capacity: Capacity | None = None  # none = no token is dropped
    normalise: Literal["none", "before", "after"] | None = (
        None  # weights made to add up to 1, before or after the drop; none = the gate's own
    )
    balance: Annotated[float, msgspec.Meta(ge=0)] | None = None  # coefficient of the gate's auxiliary loss; none = the gate's own
    z_loss: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # coefficient
    scale: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # of the weights
    bias_rate: Annotated[float, msgspec.Meta(ge=0)] = 1e-3  # sigmoid-bias: of the selection bias, an update
    expert_groups: Positive = 1  # sigmoid-bias: groups of experts
    limit: Count = 0  # sigmoid-bias: groups that a token may choose from; 0 = all
    shared: Count = 0  # experts that every token passes through
    initial: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # of the variance of the first values of router and experts (Switch: 0.1)
    dropout: Fraction = 0.0  # inside experts


class Model(Description, frozen=True):
    """The model. GPT-2's style is the default; Llama's is norm = "rms", position = "rotary", mlp = "swiglu", bias = false."""

    layers: Positive = 4
    width: Positive = 128
    heads: Positive = 4
    kv_heads: Count = 0  # grouped-query attention; 0 = as many as heads
    vocabulary: Positive = 256
    context: Positive = 128
    norm: Literal["layer", "rms"] = "layer"
    position: Literal["learned", "rotary"] = "learned"
    mlp: Literal["gelu", "swiglu"] = "gelu"
    mlp_width: Count = 0  # 0 = 4 x width for GELU, 8/3 x width, rounded up to a multiple of 8, for SwiGLU
    bias: bool = True
    tied: bool = True
    dropout: Fraction = 0.0
    moe: Moe | None = None

    @property
    def groups(self) -> int:
        """The number of key/value heads."""
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        """K, the width of one head."""
        return self.width // self.heads

    @property
    def inner(self) -> int:
        """The width inside the MLP."""
        if self.mlp_width:
            return self.mlp_width
        return 4 * self.width if self.mlp == "gelu" else -(-8 * self.width // 3 // 8) * 8

    @property
    def expert_width(self) -> int:
        """The width inside an expert."""
        return (self.moe.width if self.moe else 0) or self.inner


class Sync(Description, frozen=True):
    """How data-parallel replicas are kept together.

    bsp: one sum of gradients a step. local: every replica steps alone, and every `every` steps their weights are averaged. ssp, asp: a
    sharded parameter server; a worker is at most `staleness` clocks ahead of the slowest, or as far as it gets.
    """

    mode: Literal["bsp", "local", "ssp", "asp"] = "bsp"
    bucket_mb: Annotated[float, msgspec.Meta(gt=0)] = 25.0
    first_bucket_mb: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    algorithm: Literal["auto", "mpi", "ring", "doubling", "halving", "two-level"] = "auto"  # of the all-reduce of a bucket
    progress: Literal["calls", "thread"] = "calls"  # who lets MPI move while a rank computes: calls between operations, or a thread
    compress: Literal["none", "float16", "top-k", "powersgd"] = "none"  # what of a bucket's gradients is sent (bsp)
    keep: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.01  # top-k: the share of elements that is sent
    rank: Positive = 4  # powersgd: columns of the two factors
    every: Positive = 1  # local: steps between averages
    outer_rate: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # local: of the outer step; 1 with no momentum is the plain average
    outer_momentum: Fraction = 0.0  # local: Nesterov's, as in DiLoCo
    staleness: Count = 0  # ssp: clocks


class Offload(Description, frozen=True):
    """What leaves the device while it is not in use, and how much of the device the run may take."""

    parameters: bool = False
    optimizer: bool = False
    activations: bool = False
    device_mb: Annotated[float, msgspec.Meta(gt=0)] = 1024.0


class Plan(Description, frozen=True):
    """How the model and the batch are cut over ranks = dp x pp x cp x tp."""

    dp: Positive = 1
    pp: Positive = 1
    cp: Positive = 1
    tp: Positive = 1
    ep: Positive = 1
    order: tuple[str, ...] = ("pp", "dp", "cp", "tp")  # slowest first
    schedule: str = "1f1b"
    microbatches: Positive = 1
    accumulate: Positive = 1
    chunks: Positive = 1
    zero: Annotated[int, msgspec.Meta(ge=0, le=3)] = 0
    sequence: bool = False
    context: Literal["zig-zag", "ring", "gather", "ulysses"] = "zig-zag"  # how cp ranks see each other's keys; zig-zag is an even ring
    recompute: Literal["none", "full"] = "none"
    stages: Literal["even"] | tuple[Count, ...] = "even"
    replicas: tuple[Positive, ...] = ()
    updates: Literal["lazy", "eager"] = "lazy"
    sync: Sync = Sync()
    offload: Offload | None = None

    @property
    def ranks(self) -> int:
        """The number of MPI ranks that the plan needs."""
        inside = self.cp * self.tp
        return sum(self.replicas) * inside if self.replicas else self.dp * self.pp * inside


class Emulate(Description, frozen=True):
    """Seconds of a whole rank's share of one microbatch, slept instead of computed; `slow` holds factors by rank.

    With `slow` alone, ranks compute, and a slow one then sleeps until it has taken its factor of the time.
    """

    F: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    I: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    W: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    slow: dict[str, float] = {}
    profile: str = ""  # a profile file: times by layer instead of F, I and W

    @property
    def computes(self) -> bool:
        """Whether the arithmetic is real."""
        return bool(self.slow) and not (self.F or self.I or self.W or self.profile)


class Train(Description, frozen=True):
    """The optimisation."""

    steps: Count = 200
    batch: Positive = 32  # samples of one update, over all ranks
    optimizer: Literal["sgd", "adamw"] = "adamw"
    learning_rate: Annotated[float, msgspec.Meta(ge=0)] = 3e-3
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: Count = 20  # steps
    final_rate: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1  # of learning_rate, at the end of the cosine
    momentum: Fraction = 0.9  # SGD
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    epsilon: Annotated[float, msgspec.Meta(gt=0)] = 1e-8
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.1
    clip: Annotated[float, msgspec.Meta(ge=0)] = 1.0  # 0 = no clipping
    precision: Literal["float32", "float64"] = "float32"
    seed: Count = 1
    check_replicas: Count = 0  # steps between checks that what should be equal on several ranks is; 0 = never
    eval_every: Count = 0  # 0 = at the end only
    eval_samples: Positive = 256
    emulate: Emulate | None = None

    @property
    def asleep(self) -> bool:
        """Whether ranks sleep instead of computing: losses are then none, and no arithmetic is measured."""
        return self.emulate is not None and not self.emulate.computes


class Data(Description, frozen=True):
    """Where tokens come from: "stdlib", a text file or folder, or a token file (.bin; uint16, or uint32 for larger vocabularies)."""

    source: str = "stdlib"
    held_out: Fraction = 0.05
    ignore: tuple[Count, ...] = ()  # token ids whose prediction does not count (padding)


class Run(Description, frozen=True):
    """How the run is carried out."""

    device: Literal["cpu", "cuda"] = "cpu"
    trace: Literal["full", "off"] = "full"
    checkpoint_every: Count = 0  # steps; 0 = at the end only
    keep_checkpoints: Positive = 3
    threads: Count = 0  # BLAS threads a rank; 0 = the cores that the rank has
    gpu_aware: Literal["auto", "yes", "no"] = "auto"
    wait: Literal["auto", "spin", "yield"] = "auto"  # yield where ranks outnumber cores
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 600.0  # the longest wait for one message
    log_every: Positive = 10


class Config(Description, frozen=True):
    """Everything that decides what a run does."""

    model: Model = Model()
    plan: Plan = Plan()
    train: Train = Train()
    data: Data = Data()
    run: Run = Run()


def load(path: str | Path, overrides: typing.Sequence[str] = ()) -> Config:
    """Read a TOML file and `table.key=value` overrides.

    Raises PlanError for a file that cannot be read, an unknown key or a value of the wrong type.
    """
    try:
        tables = tomllib.loads(Path(path).read_text())
    except OSError as e:
        raise PlanError(f"cannot read {path}: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise PlanError(f"{path} is not TOML: {e}") from None
    for item in overrides:
        _override(tables, item)
    return build(tables)


def build(tables: dict[str, Any]) -> Config:
    """Turn plain tables into a Config; raises PlanError that names the key."""
    _known(tables, Config, "")
    try:
        return msgspec.convert(tables, Config)
    except msgspec.ValidationError as e:
        text, _, place = str(e).partition(" - at `$.")
        raise PlanError(f"{place.rstrip('`') or 'configuration'}: {text[:1].lower()}{text[1:]}") from None


def save(config: Config, path: str | Path) -> None:
    """Write the complete description as TOML."""
    import tomli_w

    Path(path).write_text(tomli_w.dumps(tables(config)))


def tables(config: Config) -> dict[str, Any]:
    """The complete description as plain tables, without what is None."""

    def drop(x: Any) -> Any:
        return {k: drop(v) for k, v in x.items() if v is not None} if isinstance(x, dict) else x

    return drop(msgspec.to_builtins(config))


def _override(tables: dict[str, Any], item: str) -> None:
    key, sign, text = item.partition("=")
    if not sign:
        raise PlanError(f"--set {item}: expected table.key=value, as in plan.pp=4")
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    *path, last = key.strip().split(".")
    at = tables
    for name in path:
        at = at.setdefault(name, {})
        if not isinstance(at, dict):
            raise PlanError(f"--set {item}: {name} is no table")
    at[last] = value


def _known(tables: dict[str, Any], kind: type, place: str) -> None:
    fields = {f.encode_name: f.type for f in msgspec.structs.fields(kind)}
    for key, value in tables.items():
        if key not in fields:
            near = difflib.get_close_matches(key, list(fields), 1, 0.5) or _elsewhere(key)
            hint = f"did you mean {place if '.' not in near[0] else ''}{near[0]}?" if near else f"known: {', '.join(sorted(fields))}"
            raise PlanError(f"unknown key {place}{key}; {hint}")
        inner = _table(fields[key])
        if inner and isinstance(value, dict):
            _known(value, inner, f"{place}{key}.")


def _table(kind: Any) -> type | None:
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union else (kind,)
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Description)), None)


def _elsewhere(key: str) -> list[str]:
    """The tables that do have this key."""
    return [
        f"{f.name}.{key}"
        for f in msgspec.structs.fields(Config)
        if isinstance(f.type, type) and key in {g.name for g in msgspec.structs.fields(f.type)}
    ]
