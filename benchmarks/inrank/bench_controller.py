"""Training with rank checks of every layer beside the same network of two plain nn.Linear per matrix.

What is measured is all that this library adds to a hand-written factorization: its layers' forward pass, and a
controller that looks at every layer's spectrum, of 512 tokens a step. The threshold is met from the start, so that
nothing grows and both sides stay of one size. Settings are the official spectrum, that of U V, at rank d / 3 and with
a check in ten steps; and, but for the threshold, the default configuration: the spectrum of the update D, rank 2 and
a buffer of d / 8, a check in twenty.
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

CASES = [
    {
        "name": f"{many} steps and one check of all layers, {setting}, d={width}, 1 thread",
        "params": {
            "where": "MLP and attention",
            "setting": setting,
            "steps": many,
            "directions": directions,
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
    for setting, many, width, directions in (
        ("U V at rank d/3", 10, 512, 170),
        ("U V at rank d/3", 10, 768, 256),
        ("default configuration", 20, 768, 98),
    )
]

inputs = steps.inputs


class _Several(steps.Training):
    def __init__(self, case, *arguments, after=lambda: None):
        super().__init__(case, *arguments)
        self._steps, self._after = case.steps, after

    def run(self):
        for _ in range(self._steps):
            loss = super().run()
            self._after()
        return np.float64(loss)


def _factors(case, layer, name):
    u, v = steps.factors(case, layer, name)
    return u[:, : case.directions], v[: case.directions]


def _config(case):
    import inrank

    if case.setting == "default configuration":
        return inrank.InRankConfig(threshold=1e-6)
    buffer = case.directions // 4
    return inrank.InRankConfig(
        rank=case.directions - buffer,
        buffer=buffer,
        max_rank=case.directions,
        threshold=1e-6,
        spectrum="product",
        init="official",
        warmup_steps=0,
        check_every=case.steps,
    )


def ours(case, data):
    import torch

    import inrank

    model = steps.build(case)
    inrank.wrap(model, include=list(steps.TARGETS[case.where]), config=_config(case))
    with torch.no_grad():
        for i, block in enumerate(model.blocks):
            for name in steps.TARGETS[case.where]:
                layer = getattr(block, name)
                for value, own, start in zip(
                    _factors(case, i, name), (layer.u, layer.v), (layer.initial_u, layer.initial_v), strict=True
                ):
                    own.copy_(torch.from_numpy(value))
                    if start is not None:
                        start.copy_(own)
    optimizer = torch.optim.AdamW(model.parameters(), lr=steps.LEARNING_RATE)
    controller = inrank.RankController(model, optimizer)
    return _Several(case, data, model, optimizer, after=controller.step)


def peer_two_linear(case, data):
    import torch
    from torch import nn

    model = steps.build(case)
    for i, block in enumerate(model.blocks):
        for name in steps.TARGETS[case.where]:
            u, v = _factors(case, i, name)
            out, inside = steps.shapes(case.width)[name]
            down, up = nn.Linear(inside, case.directions, bias=False), nn.Linear(case.directions, out)
            with torch.no_grad():
                down.weight.copy_(torch.from_numpy(v))
                up.weight.copy_(torch.from_numpy(u))
                up.bias.zero_()
            setattr(block, name, nn.Sequential(down, up))
    optimizer = torch.optim.AdamW(model.parameters(), lr=steps.LEARNING_RATE)
    return _Several(case, data, model, optimizer)
