"""Weights to other programs and back: a stranger's reader computes the same logits, and what returns is bit-equal."""

import json

import naive_reader
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hpcpar import checkpoint, config
from hpcpar.checkpoint import CheckpointError, safetensors
from hpcpar.checkpoint.exchange import export, take_in
from hpcpar.errors import PlanError
from hpcpar.nn.context import Microbatch
from hpcpar.nn.describe import parameters
from hpcpar.run.sample import Sampler

SMALL = {"layers": 2, "width": 24, "heads": 4, "context": 11, "vocabulary": 61, "mlp_width": 34}
LLAMA = {**SMALL, "norm": "rms", "position": "rotary", "mlp": "swiglu", "kv_heads": 2, "bias": False, "tied": False}
MODELS = {
    "gpt2": {**SMALL, "dropout": 0.1},
    "gpt2-untied": {**SMALL, "tied": False, "epsilon": 1e-3},
    "llama": LLAMA,
    "llama-tied-biases": {**LLAMA, "bias": True, "tied": True, "kv_heads": 1, "epsilon": 1e-2, "rotary_base": 300.0},
}


def saved(folder, model, precision="float64", seed=5):
    """A checkpoint of random weights: norms and biases too, and large enough that every step bends."""
    draw = np.random.default_rng(seed)
    described = config.build({"model": model, "train": {"precision": precision}})
    held = [
        ("weights", n, p.shape, tuple(slice(0, k) for k in p.shape), (draw.standard_normal(p.shape) * 0.4 + 0.1).astype(precision))
        for n, p in parameters(described.model).items()
    ]
    tmp = checkpoint.prepare(folder / "checkpoints", 7)
    return checkpoint.commit(tmp, [checkpoint.write_part(tmp, 0, held)], step=7, config=config.tables(described))


def logits(path, ids):
    """Those of hpcpar, at every position."""
    sampler = Sampler(path)
    at = Microbatch(sampler.stage.frame, 1, len(ids), training=False)
    return sampler.stage.logits(ids[None].astype(np.int32), sampler.weights, at)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision, tolerance", [("float64", 1e-10), ("float32", 1e-5)])
def test_a_stranger_computes_the_same_logits(tmp_path, name, precision, tolerance):
    path = saved(tmp_path / "run", MODELS[name], precision)
    export(checkpoint.open(path), tmp_path / "out")
    ids = np.random.default_rng(1).integers(0, 61, 11)
    want, got = logits(path, ids), naive_reader.logits(tmp_path / "out", ids)
    assert want.shape == got.shape == (11, 61) and np.abs(want).max() > 1
    assert np.abs(want - got).max() <= tolerance * np.abs(got).max()
    assert {w.dtype for w in load_file(tmp_path / "out/model.safetensors").values()} == {np.dtype(precision)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision", ("float32", "float64"))
def test_what_was_exported_comes_back_bit_for_bit(tmp_path, name, precision):
    path = saved(tmp_path / "run", MODELS[name], precision)
    file = export(checkpoint.open(path), tmp_path / "one/weights.safetensors")
    back = take_in(file, tmp_path / "back")
    first, second = checkpoint.read_weights(path), checkpoint.read_weights(back)
    assert list(first) == list(second)
    assert all(np.array_equal(first[n], second[n]) and first[n].dtype == second[n].dtype for n in first)
    assert checkpoint.verify(back) == [] and checkpoint.open(back).kinds() == ["weights"]
    one, two = (config.build(checkpoint.open(p).fields["config"]) for p in (path, back))
    given = {} if name.startswith("gpt2") else {"kv_heads": one.model.groups}
    assert config.tables(two)["model"] == config.tables(one)["model"] | given
    assert two.train.precision == precision and config.load(tmp_path / "back/config.toml") == two


def test_files_of_others_are_read(tmp_path):
    """The official writer's file; in two files with an index; without the prefix and with masks, as the first GPT-2 was published."""
    path = saved(tmp_path / "run", MODELS["gpt2"], "float32")
    export(checkpoint.open(path), tmp_path / "out")
    weights = load_file(tmp_path / "out/model.safetensors")
    settings = (tmp_path / "out/config.json").read_text()
    want = checkpoint.weights_sha256(path)

    def folder(name):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(settings)
        return tmp_path / name

    save_file(weights, folder("official") / "model.safetensors")
    names = sorted(weights)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, mine in shards.items():
        save_file({n: weights[n] for n in mine}, (folder("cut") if shard[0] == "a" else tmp_path / "cut") / shard)
    index = {"weight_map": {n: shard for shard, mine in shards.items() for n in mine}}
    (tmp_path / "cut/model.safetensors.index.json").write_text(json.dumps(index))
    bare = {n.removeprefix("transformer."): w for n, w in weights.items()}
    bare["h.0.attn.bias"] = np.tril(np.ones((1, 1, 11, 11), np.uint8))
    bare["lm_head.weight"] = weights["transformer.wte.weight"]
    save_file(bare, folder("bare") / "model.safetensors")
    for name in ("official", "cut", "bare"):
        assert checkpoint.weights_sha256(take_in(tmp_path / name, tmp_path / f"from-{name}")) == want, name


def test_brain_floats_and_halves_become_float32(tmp_path):
    values = np.random.default_rng(2).standard_normal((3, 5)).astype("f4")
    upper = (values.view("u4") >> 16).astype("u2")
    header = {
        "b": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]},
        "h": {"dtype": "F16", "shape": [5], "data_offsets": [30, 40]},
        "none": {"dtype": "BF16", "shape": [0, 5], "data_offsets": [40, 40]},
    }
    raw = json.dumps(header).encode()
    (tmp_path / "x").write_bytes(len(raw).to_bytes(8, "little") + raw + upper.tobytes() + values[0].astype("f2").tobytes())
    file = safetensors.File(tmp_path / "x")
    assert np.array_equal(file.read("b"), (values.view("u4") & 0xFFFF0000).view("f4")) and file.read("b").dtype == np.float32
    assert np.array_equal(file.read("h"), values[0].astype("f2")) and file.read("none").shape == (0, 5)


def test_a_damaged_file_is_named(tmp_path):
    path = saved(tmp_path / "run", MODELS["llama"])
    file = export(checkpoint.open(path), tmp_path / "out")
    raw = file.read_bytes()
    for wrong in (raw[:-1], raw[:100], raw[:5], b"", b"\xff" * 8 + raw[8:], raw[:8] + b"[" + raw[9:]):
        file.write_bytes(wrong)
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            take_in(tmp_path / "out", tmp_path / "back")
    assert not (tmp_path / "back").exists()


REFUSED = {
    "experts": ({"moe": {"experts": 2}}, r"gpt2: model\.moe: .*; llama: model\.moe"),
    "mixed": ({"norm": "rms"}, r"gpt2: model\.norm = 'rms', not 'layer'; llama: model\.position = 'learned', not 'rotary'"),
    "no biases": ({"bias": False}, r"gpt2: model\.bias = False, not True"),
    "grouped": ({"kv_heads": 2}, r"gpt2: model\.kv_heads = 2, not 4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_models_without_a_layout_are_refused(tmp_path, case):
    more, said = REFUSED[case]
    path = saved(tmp_path / "run", {**SMALL, **more})
    with pytest.raises(PlanError, match=said):
        export(checkpoint.open(path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(tmp_path):
    path = saved(tmp_path / "run", SMALL)
    export(checkpoint.open(path), tmp_path / "out")
    with pytest.raises(PlanError, match="exists"):
        export(checkpoint.open(path), tmp_path / "out")
    with pytest.raises(PlanError, match="already holds checkpoints"):
        take_in(tmp_path / "out", tmp_path / "run")


STRANGE = [
    ("gpt2", {"activation_function": "gelu"}, "activation_function = 'gelu'"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("gpt2", {"model_type": "mamba"}, "model_type = 'mamba', known is 'gpt2' or 'llama'"),
    ("gpt2", {"n_layer": 3}, r"holds no transformer\.h\.2"),
    ("gpt2", {"n_layer": 1}, r"holds transformer\.h\.1"),
    ("gpt2", {"vocab_size": 62}, r"wte\.weight is \(61, 24\), config\.json says \(62, 24\)"),
    ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_type = 'llama3'"),
    ("llama", {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type = 'linear'"),
    ("gpt2", {"n_layer": "two"}, r"model\.layers: expected `int`"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act"),
    ("llama", {"head_dim": 8}, "head_dim = 8"),
    ("llama", {"mlp_bias": True}, "mlp_bias = True"),
    ("llama", {"tie_word_embeddings": False, "num_key_value_heads": 4}, r"k_proj\.weight is \(12, 24\), config\.json says \(24, 24\)"),
]


@pytest.mark.parametrize("name, more, said", STRANGE)
def test_other_models_are_refused_by_their_settings(tmp_path, name, more, said):
    export(checkpoint.open(saved(tmp_path / "run", MODELS[name])), tmp_path / "out")
    file = tmp_path / "out/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | more))
    with pytest.raises(PlanError, match=said):
        take_in(tmp_path / "out", tmp_path / "back")


def test_settings_left_out_have_the_published_defaults(tmp_path):
    """As Hugging Face saves them: what is its default is not always written; a base of the rotation stands in one of two places."""
    export(checkpoint.open(saved(tmp_path / "run", MODELS["llama"] | {"epsilon": 1e-6})), tmp_path / "out")
    file = tmp_path / "out/config.json"
    settings = json.loads(file.read_text())
    for key in (
        "rms_norm_eps",
        "rope_theta",
        "rope_parameters",
        "hidden_act",
        "attention_bias",
        "mlp_bias",
        "head_dim",
        "tie_word_embeddings",
    ):
        settings.pop(key)
    for i, more in enumerate(({}, {"rope_theta": 500.0}, {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}})):
        file.write_text(json.dumps(settings | more))
        found = config.build(checkpoint.open(take_in(tmp_path / "out", tmp_path / f"{i}")).fields["config"]).model
        assert (found.epsilon, found.rotary_base) == (1e-6, 500.0 if more else 10000.0)
