"""Standard scores beside numpy's own arithmetic."""

import numpy as np

IMPORTS = {"ours": ["inrank"], "numpy": ["numpy"]}

CASES = [
    {"name": "a million samples", "params": {"n": 1_000_000}, "peers": {"numpy": {"tolerance": 1e-12}}},
]


def inputs(case):
    return {"x": np.random.default_rng(0).standard_normal(case.n)}


def ours(case, data):
    from inrank import standardize

    return lambda: standardize(data["x"])


def peer_numpy(case, data):
    x = data["x"]
    return lambda: (x - x.mean()) / x.std()
