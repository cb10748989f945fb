"""[model]: the transformer, dense or with mixtures of experts."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from hpcpar.config.description import Count, Description, Fraction, Positive


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
    gate: Literal["noisy-topk", "gshard", "switch", "topk", "sigmoid-bias", "expert-choice", "base", "hash", "balanced"] = "topk"
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
    jitter: Fraction = 0.0  # of what the router reads in training: times 1 - jitter .. 1 + jitter (Switch: 0.01)


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
    epsilon: Annotated[float, msgspec.Meta(gt=0)] = 1e-5  # of the norms
    rotary_base: Annotated[float, msgspec.Meta(gt=0)] = 10000.0
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
