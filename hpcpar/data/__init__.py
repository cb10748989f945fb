"""Token sources and batches by global sample index: the same data for every plan.

source -> tokens (1-D) -> Corpus -> batch(first, count) -> ids (B, T), labels (B, T)
"""

from hpcpar.data.corpus import Corpus
from hpcpar.data.sources import Source, open_tokens
from hpcpar.data.yardsticks import Yardsticks

__all__ = ["Corpus", "Source", "Yardsticks", "open_source", "open_tokens"]

open_source = Corpus.of
