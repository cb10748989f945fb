"""The trace of a run: schema, writer, index and reader; real and predicted runs write the same."""

from hpcpar.trace.reader import Trace, open

__all__ = ["Trace", "open"]
