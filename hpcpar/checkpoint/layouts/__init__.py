"""How other programs lay out the same models: Hugging Face's names, shapes and config.json; to add one, add a file.

    here                          gpt2                                       llama
    tokens.weight        (V, D)   transformer.wte.weight            (V, D)   model.embed_tokens.weight                  (V, D)
    blocks.0.attention.query,key,value.weight
                         (D, D)   transformer.h.0.attn.c_attn.weight         model.layers.0.self_attn.q_proj.weight, ...
                                  (D, 3D): side by side and transposed                                                  (D, D)

A layout is a module with TYPE (the model_type of config.json), PREFIX (of names, left out where a file holds no head), `unlike` (why it
cannot hold a model), `settings` (model -> config.json), `described` (config.json -> model) and `places` (name there -> names here).
"""

from __future__ import annotations

from types import ModuleType

from hpcpar.checkpoint.layouts import gpt2, llama
from hpcpar.config import Model
from hpcpar.errors import PlanError

LAYOUTS: dict[str, ModuleType] = {module.TYPE: module for module in (gpt2, llama)}


def layout_of(model: Model) -> ModuleType:
    """The layout that holds a model; raises PlanError with each one's reason where none does."""
    reasons = {name: module.unlike(model) for name, module in LAYOUTS.items()}
    found = next((LAYOUTS[name] for name, why in reasons.items() if why is None), None)
    if found is None:
        said = "; ".join(f"{name}: {why}" for name, why in reasons.items())
        raise PlanError(f"no layout holds this model ({said}); checkpoints of other models stay in hpcpar's own format")
    return found
