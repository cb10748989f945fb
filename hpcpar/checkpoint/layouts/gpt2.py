"""GPT-2 as Hugging Face stores it: matrices are those of a Conv1D, (in, out); query, key and value are one array, side by side.

Radford et al. 2019; the names are those of GPT2LMHeadModel, the keys of config.json those of GPT2Config.
"""

from __future__ import annotations

from typing import Any

from hpcpar.checkpoint.layouts.place import Place, first_unlike, refuse_unless
from hpcpar.config import Model

TYPE = "gpt2"
PREFIX = "transformer."
IGNORED = (".attn.bias", ".attn.masked_bias")  # causal masks that old files hold


def unlike(model: Model) -> str | None:
    """Why a model is no GPT-2; None where it is one."""
    if model.moe:
        return "model.moe: it has no experts"
    return first_unlike(
        {
            "norm": (model.norm, "layer"),
            "position": (model.position, "learned"),
            "mlp": (model.mlp, "gelu"),
            "bias": (model.bias, True),
            "kv_heads": (model.groups, model.heads),
        }
    )


def settings(model: Model) -> dict[str, Any]:
    """What config.json says of the model; the GELU is the tanh form, "gelu_new"."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": TYPE,
        "vocab_size": model.vocabulary,
        "n_positions": model.context,
        "n_ctx": model.context,
        "n_embd": model.width,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_inner": model.inner,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": model.epsilon,
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": 0.0,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "tie_word_embeddings": model.tied,
    }


def described(found: dict[str, Any]) -> Model:
    """The model of a config.json, whose missing keys have GPT2Config's defaults; raises PlanError for what it is not here."""
    refuse_unless(
        TYPE,
        {
            "activation_function": (found.get("activation_function", "gelu_new"), ("gelu_new", "gelu_fast")),
            "scale_attn_weights": (found.get("scale_attn_weights", True), (True,)),
            "scale_attn_by_inverse_layer_idx": (found.get("scale_attn_by_inverse_layer_idx", False), (False,)),
            "add_cross_attention": (found.get("add_cross_attention", False), (False,)),
        },
    )
    width = found.get("n_embd", 768)
    return Model(
        layers=found.get("n_layer", 12),
        width=width,
        heads=found.get("n_head", 12),
        vocabulary=found.get("vocab_size", 50257),
        context=found.get("n_positions", 1024),
        mlp_width=found.get("n_inner") or 4 * width,
        tied=found.get("tie_word_embeddings", True),
        epsilon=found.get("layer_norm_epsilon", 1e-5),
        dropout=found.get("resid_pdrop", 0.1),
    )


def places(model: Model) -> dict[str, Place]:
    """{name there: its parameters here}, in the order of the forward."""
    out = {f"{PREFIX}wte.weight": Place(("tokens.weight",)), f"{PREFIX}wpe.weight": Place(("positions.weight",))}
    for i in range(model.layers):
        here, there = f"blocks.{i}", f"{PREFIX}h.{i}"
        qkv = [f"{here}.attention.{n}" for n in ("query", "key", "value")]
        out |= _norm(f"{there}.ln_1", f"{here}.norm1")
        out |= _conv(f"{there}.attn.c_attn", *qkv) | _conv(f"{there}.attn.c_proj", f"{here}.attention.out")
        out |= _norm(f"{there}.ln_2", f"{here}.norm2")
        out |= _conv(f"{there}.mlp.c_fc", f"{here}.mlp.up") | _conv(f"{there}.mlp.c_proj", f"{here}.mlp.down")
    out |= _norm(f"{PREFIX}ln_f", "norm")
    return out if model.tied else {**out, "lm_head.weight": Place(("head.weight",))}


def _norm(there: str, here: str) -> dict[str, Place]:
    return {f"{there}.weight": Place((f"{here}.gain",)), f"{there}.bias": Place((f"{here}.bias",))}


def _conv(there: str, *here: str) -> dict[str, Place]:
    weights, biases = (tuple(f"{n}.{kind}" for n in here) for kind in ("weight", "bias"))
    return {f"{there}.weight": Place(weights, turned=True), f"{there}.bias": Place(biases)}
