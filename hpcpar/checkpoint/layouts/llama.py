"""Llama as Hugging Face stores it: matrices (out, in), rotary pairs half-rotated (element j with j + K/2), as in ops.rotary.

Touvron et al., arXiv:2302.13971; the names are those of LlamaForCausalLM, the keys of config.json those of LlamaConfig.
"""

from __future__ import annotations

from typing import Any

from hpcpar.checkpoint.layouts.place import Place, first_unlike, refuse_unless
from hpcpar.config import Model
from hpcpar.errors import PlanError

TYPE = "llama"
PREFIX = "model."
IGNORED = (".rotary_emb.inv_freq",)  # frequencies that old files hold

ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "out"}
MLP = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


def unlike(model: Model) -> str | None:
    """Why a model is no Llama; None where it is one."""
    if model.moe:
        return "model.moe: it has no experts"
    return first_unlike({"norm": (model.norm, "rms"), "position": (model.position, "rotary"), "mlp": (model.mlp, "swiglu")})


def settings(model: Model) -> dict[str, Any]:
    """What config.json says of the model; the base of the rotation stands where old and where new readers look."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": TYPE,
        "vocab_size": model.vocabulary,
        "max_position_embeddings": model.context,
        "hidden_size": model.width,
        "intermediate_size": model.inner,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.groups,
        "head_dim": model.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": model.epsilon,
        "rope_theta": model.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rotary_base},
        "attention_bias": model.bias,
        "mlp_bias": model.bias,
        "attention_dropout": 0.0,
        "tie_word_embeddings": model.tied,
    }


def described(found: dict[str, Any]) -> Model:
    """The model of a config.json, whose missing keys have LlamaConfig's defaults; raises PlanError for what it is not here."""
    heads, width = found.get("num_attention_heads", 32), found.get("hidden_size", 4096)
    rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
    bias = found.get("attention_bias", False)
    refuse_unless(
        TYPE,
        {
            "hidden_act": (found.get("hidden_act", "silu"), ("silu",)),
            "rope_type": (rope.get("rope_type", rope.get("type", "default")), ("default",)),
            "partial_rotary_factor": (rope.get("partial_rotary_factor", found.get("partial_rotary_factor", 1.0)), (1.0,)),
            "mlp_bias": (found.get("mlp_bias", False), (bias,)),
        },
    )
    if (found.get("head_dim") or width // heads) * heads != width:
        raise PlanError(
            f"config.json (llama) has head_dim = {found['head_dim']} and {heads} heads for a width of {width}; here heads make the width"
        )
    return Model(
        layers=found.get("num_hidden_layers", 32),
        width=width,
        heads=heads,
        kv_heads=found.get("num_key_value_heads") or heads,
        vocabulary=found.get("vocab_size", 32000),
        context=found.get("max_position_embeddings", 2048),
        norm="rms",
        position="rotary",
        mlp="swiglu",
        mlp_width=found.get("intermediate_size", 11008),
        bias=bias,
        tied=found.get("tie_word_embeddings", False),
        epsilon=found.get("rms_norm_eps", 1e-6),
        rotary_base=rope.get("rope_theta", found.get("rope_theta", 10000.0)),
    )


def places(model: Model) -> dict[str, Place]:
    """{name there: its parameters here}, in the order of the forward."""
    kinds = ("weight", "bias") if model.bias else ("weight",)
    out = {f"{PREFIX}embed_tokens.weight": Place(("tokens.weight",))}
    for i in range(model.layers):
        here, there = f"blocks.{i}", f"{PREFIX}layers.{i}"
        out[f"{there}.input_layernorm.weight"] = Place((f"{here}.norm1.gain",))
        out |= {f"{there}.self_attn.{a}.{k}": Place((f"{here}.attention.{b}.{k}",)) for a, b in ATTENTION.items() for k in kinds}
        out[f"{there}.post_attention_layernorm.weight"] = Place((f"{here}.norm2.gain",))
        out |= {f"{there}.mlp.{a}.{k}": Place((f"{here}.mlp.{b}.{k}",)) for a, b in MLP.items() for k in kinds}
    out[f"{PREFIX}norm.weight"] = Place(("norm.gain",))
    return out if model.tied else {**out, "lm_head.weight": Place(("head.weight",))}
