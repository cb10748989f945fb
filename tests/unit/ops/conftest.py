"""Every test of the operations runs with overflow, invalid values, division by zero and warnings as errors."""

import warnings

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def strict():
    with np.errstate(over="raise", invalid="raise", divide="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def random():
    return np.random.default_rng(7)
