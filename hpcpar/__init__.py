"""hpcpar: train transformers in parallel over MPI, proven equal to one process, traced and analysed."""

__version__ = "0.1.0"
