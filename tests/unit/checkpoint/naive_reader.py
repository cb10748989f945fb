"""A stranger's reader: GPT-2 and Llama from a folder with config.json and safetensors, by Hugging Face's published layout alone.

It imports nothing of hpcpar and takes no shortcut: one position after the other, one head after the other, in float64.
"""

import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def logits(folder: Path, ids: np.ndarray, file: str = "model.safetensors") -> np.ndarray:
    """ids (T,) -> (T, vocab_size)."""
    settings = json.loads((folder / "config.json").read_text())
    weights = {name: w.astype(np.float64) for name, w in load_file(folder / file).items()}
    return {"GPT2LMHeadModel": gpt2, "LlamaForCausalLM": llama}[settings["architectures"][0]](settings, weights, ids)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """One head, (T, K) each: causal softmax of q k' / sqrt(K), times v."""
    out = np.zeros_like(v)
    for t in range(len(q)):
        scores = np.array([q[t] @ k[s] for s in range(t + 1)]) / math.sqrt(q.shape[1])
        e = np.exp(scores - scores.max())
        out[t] = (e / e.sum()) @ v[: t + 1]
    return out


def gpt2(c: dict, w: dict, ids: np.ndarray) -> np.ndarray:
    """GPT2LMHeadModel: Conv1D computes x W + b with W (in, out); c_attn gives query, key and value side by side."""
    assert c["activation_function"] == "gelu_new" and c["scale_attn_weights"] and not c["scale_attn_by_inverse_layer_idx"]

    def conv1d(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def norm(x, name):
        variance = ((x - x.mean(1, keepdims=True)) ** 2).mean(1, keepdims=True)
        return (x - x.mean(1, keepdims=True)) / np.sqrt(variance + c["layer_norm_epsilon"]) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def gelu_new(x):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    assert w["transformer.wpe.weight"].shape == (c["n_positions"], c["n_embd"])
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: len(ids)]
    width = c["n_embd"] // c["n_head"]
    for i in range(c["n_layer"]):
        name = f"transformer.h.{i}"
        qkv = conv1d(norm(x, f"{name}.ln_1"), f"{name}.attn.c_attn")
        q, k, v = qkv[:, : c["n_embd"]], qkv[:, c["n_embd"] : 2 * c["n_embd"]], qkv[:, 2 * c["n_embd"] :]
        heads = [slice(h * width, (h + 1) * width) for h in range(c["n_head"])]
        x = x + conv1d(np.concatenate([attend(q[:, h], k[:, h], v[:, h]) for h in heads], 1), f"{name}.attn.c_proj")
        inner = conv1d(norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc")
        assert inner.shape[1] == (c["n_inner"] or 4 * c["n_embd"])
        x = x + conv1d(gelu_new(inner), f"{name}.mlp.c_proj")
    assert ("lm_head.weight" in w) != c["tie_word_embeddings"]
    head = w["transformer.wte.weight"] if c["tie_word_embeddings"] else w["lm_head.weight"]
    assert head.shape == (c["vocab_size"], c["n_embd"])
    return norm(x, "transformer.ln_f") @ head.T


def llama(c: dict, w: dict, ids: np.ndarray) -> np.ndarray:
    """LlamaForCausalLM: rotate_half pairs element j of a head with j + K/2; a key/value head serves heads / kv_heads neighbours."""
    assert c["hidden_act"] == "silu" and c["rope_parameters"]["rope_type"] == "default"
    assert c["rope_theta"] == c["rope_parameters"]["rope_theta"]
    kinds = {"self_attn": c["attention_bias"], "mlp": c["mlp_bias"]}

    def linear(x, name):
        y = x @ w[f"{name}.weight"].T
        return y + w[f"{name}.bias"] if kinds[name.split(".")[-2]] else y

    def norm(x, name):
        return w[f"{name}.weight"] * (x / np.sqrt((x**2).mean(1, keepdims=True) + c["rms_norm_eps"]))

    def rotated(x):
        k = x.shape[1]
        frequency = np.array([1 / c["rope_theta"] ** (2 * j / k) for j in range(k // 2)])
        angle = np.arange(len(x))[:, None] * np.concatenate([frequency, frequency])
        rotate_half = np.concatenate([-x[:, k // 2 :], x[:, : k // 2]], 1)
        return x * np.cos(angle) + rotate_half * np.sin(angle)

    x = w["model.embed_tokens.weight"][ids]
    width, each = c["head_dim"], c["num_attention_heads"] // c["num_key_value_heads"]
    for i in range(c["num_hidden_layers"]):
        name = f"model.layers.{i}"
        h = norm(x, f"{name}.input_layernorm")
        q, k, v = (linear(h, f"{name}.self_attn.{p}_proj") for p in "qkv")
        assert k.shape[1] == c["num_key_value_heads"] * width
        outs = []
        for head in range(c["num_attention_heads"]):
            own, shared = slice(head * width, (head + 1) * width), slice(head // each * width, (head // each + 1) * width)
            outs.append(attend(rotated(q[:, own]), rotated(k[:, shared]), v[:, shared]))
        x = x + linear(np.concatenate(outs, 1), f"{name}.self_attn.o_proj")
        h = norm(x, f"{name}.post_attention_layernorm")
        gate, up = linear(h, f"{name}.mlp.gate_proj"), linear(h, f"{name}.mlp.up_proj")
        assert gate.shape[1] == c["intermediate_size"]
        x = x + linear(gate / (1 + np.exp(-gate)) * up, f"{name}.mlp.down_proj")
    assert ("lm_head.weight" in w) != c["tie_word_embeddings"]
    head = w["model.embed_tokens.weight"] if c["tie_word_embeddings"] else w["lm_head.weight"]
    assert head.shape == (c["vocab_size"], c["hidden_size"])
    return norm(x, "model.norm") @ head.T
