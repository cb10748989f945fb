"""Parallel forms as arithmetic: what each cuts, what it sends, and how many bytes; read by parallel, run and analyse, written once."""
