"""The spectrum of U V that a rank check needs, beside singular values of the dense product (the official way).

Both MLP matrices of GPT-2 small, at rank 2 + buffer 100, and one of GPT-2 medium near its final rank; by the method
that a configuration has by default.
"""

import numpy as np

IMPORTS = {"ours": ["torch", "inrank.spectrum"], "dense_product": ["torch"]}

CASES = [
    {
        "name": f"rank check {m}x{n}, {k} directions, {dtype}",
        "params": {"m": m, "n": n, "k": k, "dtype": dtype},
        "threads": 1,
        "pairs": 7,
        "peers": {"dense_product": {"environment": "torch", "tolerance": 1e-6, **goal}},
    }
    for m, n, k, dtype, goal in (
        (768, 3072, 102, "float32", {"goal": "speedup >= 50"}),
        (3072, 768, 102, "float32", {"goal": "speedup >= 50"}),
        (768, 3072, 102, "float64", {"goal": "speedup >= 50"}),
        (1024, 4096, 387, "float32", {}),
    )
]


def inputs(case):
    rng = np.random.default_rng(0)
    decay = 0.97 ** np.arange(case.k)
    u = rng.standard_normal((case.m, case.k)) * decay
    v = rng.standard_normal((case.k, case.n))
    return {"u": u.astype(case.dtype), "v": v.astype(case.dtype)}


def ours(case, data):
    import torch

    from inrank import InRankConfig
    from inrank.spectrum import product_singular_values

    torch.set_num_threads(case.threads)
    u, v = torch.from_numpy(data["u"]), torch.from_numpy(data["v"])
    method = InRankConfig().method
    return lambda: product_singular_values(u, v, method=method).numpy()


def peer_dense_product(case, data):
    import torch

    torch.set_num_threads(case.threads)
    u, v = torch.from_numpy(data["u"]), torch.from_numpy(data["v"])
    return lambda: torch.linalg.svdvals(u @ v).numpy()
