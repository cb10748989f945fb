"""Compiled twins of the array text for plain NumPy arrays: they release the GIL, and an element's or row's bits depend on it alone."""
