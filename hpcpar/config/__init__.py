"""The frozen descriptions of a run: Model, Plan, Train, Data and Run, in one TOML file; a file a table.

A run is its description: it is stored whole in every trace and checkpoint, and nothing in the environment decides what it could say.

    [model] [plan] [train] [data] [run]   ->   Config   ->   config.toml, complete

Unknown keys are errors that name the key and the nearest known one.
"""

from hpcpar.config.description import Count, Description, Fraction, Positive
from hpcpar.config.model import Capacity, Model, Moe
from hpcpar.config.plan import Offload, Plan, Sync, Ways
from hpcpar.config.read import build, load, override, save, tables
from hpcpar.config.train import Emulate, Train
from hpcpar.config.whole import Config, Data, Run

__all__ = [
    "Capacity", "Config", "Count", "Data", "Description", "Emulate", "Fraction", "Model", "Moe", "Offload", "Plan", "Positive", "Run",
    "Sync", "Train", "Ways", "build", "load", "override", "save", "tables",
]  # fmt: skip
