"""Fixtures shared by all tests of the package."""

from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def golden():
    """Load a file of reference values: ``golden("scalar_sht")`` is a dict of arrays."""

    def load(name):
        with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
            return {key: file[key] for key in file.files}

    return load
