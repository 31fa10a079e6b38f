"""Ten training steps with a rank check of every layer beside the same network of two plain nn.Linear per matrix.

What is measured is all that this library adds to a hand-written factorization: its layers' forward pass, and a
controller that looks at every layer's spectrum once in ten steps. The threshold is met from the start, so that
nothing grows and both sides stay of one size.
"""

import importlib.util
from pathlib import Path

import numpy as np

_spec = importlib.util.spec_from_file_location(
    "bench_training_step", Path(__file__).with_name("bench_training_step.py")
)
steps = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(steps)

IMPORTS = {"ours": ["torch", "inrank"], "two_linear": ["torch"]}
STEPS = 10

CASES = [
    {
        "name": f"{STEPS} steps and one check of all layers, d={width}, 1 thread",
        "params": {
            "where": "MLP and attention",
            "width": width,
            "layers": 2,
            "vocabulary": 4096,
            "batch": 4,
            "context": 128,
        },
        "threads": 1,
        "pairs": 7,
        "peers": {"two_linear": {"environment": "torch", "tolerance": 1e-4, "goal": "ratio <= 1.02"}},
    }
    for width in (512, 768)
]

inputs = steps.inputs


class _Ten(steps.Training):
    def __init__(self, *arguments, after=lambda: None):
        super().__init__(*arguments)
        self._after = after

    def run(self):
        for _ in range(STEPS):
            loss = super().run()
            self._after()
        return np.float64(loss)


def ours(case, data):
    import torch

    import inrank

    model = steps.build(case)
    rank = case.width // 3
    buffer = rank // 4
    config = inrank.InRankConfig(
        rank=rank - buffer,
        buffer=buffer,
        max_rank=rank,
        threshold=1e-6,
        spectrum="product",
        init="official",
        warmup_steps=0,
        check_every=STEPS,
    )
    inrank.wrap(model, include=list(steps.TARGETS[case.where]), config=config)
    with torch.no_grad():
        for i, block in enumerate(model.blocks):
            for name in steps.TARGETS[case.where]:
                u, v = steps.factors(case, i, name)
                getattr(block, name).u.copy_(torch.from_numpy(u))
                getattr(block, name).v.copy_(torch.from_numpy(v))
    optimizer = torch.optim.AdamW(model.parameters(), lr=steps.LEARNING_RATE)
    controller = inrank.RankController(model, optimizer)
    return _Ten(case, data, model, optimizer, after=controller.step)


def peer_two_linear(case, data):
    import torch
    from torch import nn

    model = steps.build(case)
    rank = case.width // 3
    for i, block in enumerate(model.blocks):
        for name in steps.TARGETS[case.where]:
            u, v = steps.factors(case, i, name)
            out, inside = steps.shapes(case.width)[name]
            down, up = nn.Linear(inside, rank, bias=False), nn.Linear(rank, out)
            with torch.no_grad():
                down.weight.copy_(torch.from_numpy(v))
                up.weight.copy_(torch.from_numpy(u))
                up.bias.zero_()
            setattr(block, name, nn.Sequential(down, up))
    optimizer = torch.optim.AdamW(model.parameters(), lr=steps.LEARNING_RATE)
    return _Ten(case, data, model, optimizer)
