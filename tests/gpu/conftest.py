"""Tests on a GPU: `make test-gpu`. With PYTHONPATH=tests/standin they run on the stand-in instead, which proves less and needs no GPU."""

from __future__ import annotations

import pytest


def absent() -> str | None:
    """Why there is no GPU to test on, or None."""
    try:
        import cupy
    except ImportError as e:
        return f"cupy cannot be imported ({e})"
    return None if cupy.cuda.is_available() else f"cupy {cupy.__version__} finds no GPU"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a GPU and cupy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = absent()
    for item in items:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
