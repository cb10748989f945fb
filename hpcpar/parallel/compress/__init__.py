"""Compressed gradients: what of a bucket is sent, a file a codec. The sum that comes of it is the same bits on every rank.

float16     all-to-all of halves, summed in full precision, all-gather of halves        what does not fit is rounded away
top-k       the largest elements of gradient + owed, from every rank to all             the others are owed
powersgd    two thin factors of each matrix, all-reduced one after the other            what they do not hold is owed

What is owed stays on its rank and is added to the next gradient: nothing is lost in the long run.
"""

from hpcpar.parallel.compress.codec import Codec, Memory
from hpcpar.parallel.compress.float16 import Float16
from hpcpar.parallel.compress.powersgd import PowerSGD
from hpcpar.parallel.compress.reducer import Compressed
from hpcpar.parallel.compress.top_k import TopK

CODECS: dict[str, type[Codec]] = {"float16": Float16, "top-k": TopK, "powersgd": PowerSGD}

__all__ = ["CODECS", "Codec", "Compressed", "Memory"]
