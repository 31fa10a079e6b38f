"""When a controller looks at spectra: after optimizer steps, and nothing else moves its clock."""

import dataclasses
import json
import math
from collections import OrderedDict

import pytest
import torch
from torch import nn

from inrank import InRankConfig, InRankLinear
from inrank.controller import RankController

torch.set_num_threads(1)


def made(**changes):
    settings = {"rank": 1, "buffer": 2, "max_rank": 10, "warmup_steps": 2, "check_every": 2, "threshold": 0.999}
    config = InRankConfig(**{**settings, **changes})
    torch.manual_seed(0)
    first, second = InRankLinear(10, 14, config=config), InRankLinear(14, 10, config=config)
    model = nn.Sequential(OrderedDict(first=first, relu=nn.ReLU(), second=second))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model, optimizer, controller, steps=12):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(16, 10, generator=generator)
        (model(x) - x.flip(1).cumsum(1)).square().mean().backward()
        optimizer.step()
        controller.step()


def test_only_optimizer_steps_move_the_clock():
    """Trap 6: evaluation, accumulation and activation checkpointing leave the schedule alone."""
    model, optimizer = made()
    controller = RankController(model, optimizer)
    for _ in range(5):
        model(torch.randn(3, 10))
        model.eval()(torch.randn(3, 10))
        controller.step()
    assert controller.steps == 0
    assert controller.report().checks == 0
    x = torch.randn(4, 10)
    for _ in range(3):
        for _ in range(4):
            torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).square().mean().backward()
        optimizer.step()
        controller.step()
        controller.step()
    assert controller.steps == 3
    assert controller.report().checks == 0  # warmup_steps is 2, the next multiple of check_every is 4
    optimizer.step()
    controller.step()
    assert controller.report().checks == 2


def test_evaluation_never_changes_ranks_and_empty_batches_pass():
    model, optimizer = made()
    controller = RankController(model, optimizer).attach()
    train(model, optimizer, controller, 4)
    ranks = controller.state_dict()["ranks"]
    model.eval()
    for _ in range(50):
        model(torch.randn(2, 10))
    assert model(torch.zeros(0, 10)).shape == (0, 10)
    assert controller.state_dict()["ranks"] == ranks


def test_several_optimizer_steps_between_calls_all_count():
    model, optimizer = made()
    controller = RankController(model, optimizer)
    model(torch.randn(4, 10)).square().mean().backward()
    for _ in range(5):
        optimizer.step()
    controller.step()
    assert controller.steps == 5
    assert controller.report().checks == 2  # once for each layer, not once for each multiple passed


def test_attached_controllers_need_no_call():
    one, two = made(), made()
    called, attached = RankController(*one), RankController(*two).attach()
    train(*one, called)
    train(*two, attached)
    assert called.events == attached.events
    assert called.events
    assert all(torch.equal(a, b) for a, b in zip(one[0].parameters(), two[0].parameters(), strict=True))
    steps = attached.steps
    attached.close()
    two[1].step()
    assert attached.steps == steps
    with pytest.raises(ValueError, match="no optimizer to attach to"):
        RankController(made()[0], None).attach()


def test_a_step_that_a_gradient_scaler_skips_does_not_count():
    model, optimizer = made()
    controller = RankController(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for bad in (False, True, False):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 10)).square().mean() * (math.inf if bad else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        controller.step()
    assert controller.steps == 2


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_a_step_that_a_fused_optimizer_skips_does_not_count(found):
    model, _ = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    controller = RankController(model, optimizer)
    model(torch.randn(4, 10)).square().mean().backward()
    optimizer.found_inf, optimizer.grad_scale = torch.tensor(found), torch.tensor(1.0)  # as GradScaler.step has it
    optimizer.step()
    controller.step()
    assert controller.steps == (0 if found else 1)


def test_a_forgotten_call_is_noticed():
    """peft#1801: a rank that stays because nobody calls the update."""
    model, optimizer = made(warmup_steps=1, check_every=1)
    RankController(model, optimizer)
    model(torch.randn(4, 10)).square().mean().backward()
    with pytest.warns(UserWarning, match=r"12 steps since controller\.step\(\) was last called"):
        _ = [optimizer.step() for _ in range(15)]


def test_checks_can_be_spread_over_steps():
    model, optimizer = made(check_every=4, warmup_steps=0)
    controller = RankController(model, optimizer, amortize=True)
    counts = []
    for _ in range(8):
        train(model, optimizer, controller, 1)
        counts.append(tuple(row.checks for row in controller.report().layers))
    assert counts == [(0, 1), (0, 1), (0, 1), (1, 1), (1, 2), (1, 2), (1, 2), (2, 2)]


def test_checks_of_a_rank_that_stays_become_rare():
    model, optimizer = made(check_every=1, warmup_steps=0, threshold=0.001)
    controller = RankController(model, optimizer, backoff=4)
    train(model, optimizer, controller, 1)
    start = controller.report().layers[0].checks
    checked = []
    for _ in range(12):
        before = controller.report().layers[0].checks
        train(model, optimizer, controller, 1)
        checked.append(controller.report().layers[0].checks - before)
    assert start == 1
    assert checked == [0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0]
    state = json.loads(json.dumps(controller.state_dict()))
    other = RankController(model, optimizer, backoff=4)
    other.load_state_dict(state)
    assert other._states["first"].rest == controller._states["first"].rest > 0
    model.first.config = dataclasses.replace(model.first.config, threshold=0.9999)
    for _ in range(8):
        train(model, optimizer, controller, 1)
    assert controller._states["first"].idle < 4
    with pytest.raises(ValueError, match="backoff is 0"):
        RankController(model, optimizer, backoff=0)
