"""Operations on arrays: pure functions, a file an operation, each with forward, backward and cost; NumPy or CuPy from the argument."""
