"""Checkpoints in global form by name: written by many ranks, whole or not at all, read back under any plan.

tmp = prepare(folder, step)                  one rank
entry = write_part(tmp, rank, tensors)       every writing rank
commit(tmp, entries, updates=..., ...)       one rank, with the entries of all

path, said = newest_intact(folder)
open(path).read("weights", "blocks.0.mlp.up.weight", slices)
"""

from hpcpar.checkpoint.manifest import CheckpointError, newest, steps
from hpcpar.checkpoint.ranges import boxes_within
from hpcpar.checkpoint.read import Checkpoint, open, read_weights, weights_digest, weights_sha256
from hpcpar.checkpoint.store import commit, discard, prepare, prune, write_part
from hpcpar.checkpoint.verify import find, newest_intact, open_intact, verify

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "boxes_within",
    "commit",
    "discard",
    "find",
    "newest",
    "newest_intact",
    "open",
    "open_intact",
    "prepare",
    "prune",
    "read_weights",
    "steps",
    "verify",
    "weights_digest",
    "weights_sha256",
    "write_part",
]
