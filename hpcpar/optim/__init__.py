"""Update rules on flat slices, learning rates and clipping.

    rule = OPTIMIZERS[train.optimizer].of(train)
    state = rule.state(n, numpy, "float32")
    rule.step(w, g, state, segments, t, lr, scale)          in place

A rule knows nothing of parameters: it updates elements, so that the whole model, a stage or a shard of either are the same call.
"""

from hpcpar.optim.adamw import AdamW
from hpcpar.optim.clip import coefficient
from hpcpar.optim.rates import RATES, rate
from hpcpar.optim.segments import Segment, segments_of, within
from hpcpar.optim.sgd import SGD

OPTIMIZERS = {"adamw": AdamW, "sgd": SGD}

__all__ = ["OPTIMIZERS", "RATES", "SGD", "AdamW", "Segment", "coefficient", "rate", "segments_of", "within"]
