import copy

import pytest
import torch
from torch import nn

from inrank import InRankConfig, InRankLinear, finalize
from inrank.controller import RankController
from inrank.young_directions import YoungDirections, corrects_steps

torch.set_num_threads(1)

CASES = {
    "adam": (torch.optim.Adam, {}),
    "adam-coupled-decay": (torch.optim.Adam, {"weight_decay": 0.1}),
    "adam-amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adam-maximize": (torch.optim.Adam, {"maximize": True}),
    "adam-betas": (torch.optim.Adam, {"betas": (0.5, 0.99), "eps": 1e-3}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.3}),
    "adamw-foreach": (torch.optim.AdamW, {"foreach": True}),
    "adamw-fused": (torch.optim.AdamW, {"fused": True}),
    "adamw-tensor-lr": (torch.optim.AdamW, {"lr": torch.tensor(0.05), "foreach": False}),
    "adamax": (torch.optim.Adamax, {"weight_decay": 0.1}),
    "nadam": (torch.optim.NAdam, {"weight_decay": 0.1}),
    "nadam-decoupled": (torch.optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    "radam": (torch.optim.RAdam, {}),
    "radam-decoupled": (torch.optim.RAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
}


def layer_of(storage="resize"):
    torch.manual_seed(0)
    config = InRankConfig(rank=2, buffer=2, max_rank=8, storage=storage)
    layer = InRankLinear(10, 12, config=config).double()
    with torch.no_grad():
        layer.u[:, : layer.active].normal_()
    return layer


@pytest.mark.parametrize("storage", ["resize", "reserve"])
@pytest.mark.parametrize("name", CASES)
def test_young_directions_step_as_an_optimizer_of_their_own(name, storage):
    """Against torch's own optimizer, made when the directions were, and given their part of the same gradients."""
    kind, settings = CASES[name]
    settings = {"lr": 0.05, **settings}
    layer = layer_of(storage)
    optimizer = kind([layer.u, layer.v], **settings)
    controller = RankController(layer, optimizer, null_ranks=False)
    generator = torch.Generator().manual_seed(1)

    def gradients():
        for p in (layer.u, layer.v):
            p.grad = torch.randn(p.shape, dtype=p.dtype, generator=generator)

    for _ in range(30):
        gradients()
        optimizer.step()
    controller._change("", 4)
    old_u, old_v = layer.u.detach()[:, :4].clone(), layer.v.detach()[:4].clone()
    own = [nn.Parameter(layer.u.detach()[:, 4:6].clone()), nn.Parameter(layer.v.detach()[4:6].clone())]
    separate = kind(own, **settings)
    plain = [nn.Parameter(layer.u.detach().clone()), nn.Parameter(layer.v.detach().clone())]
    uncorrected = kind(plain, **settings)
    uncorrected.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch shares tensors otherwise
    for step in range(12):
        gradients()
        own[0].grad, own[1].grad = layer.u.grad[:, 4:6].clone(), layer.v.grad[4:6].clone()
        plain[0].grad, plain[1].grad = layer.u.grad.clone(), layer.v.grad.clone()
        optimizer.step()
        separate.step()
        uncorrected.step()
        if step == 0 and name in ("adam", "adamw"):
            ratio = (layer.u.detach()[:, 4:6]).abs().mean() / 0.05
            assert 0.99 < ratio < 1.01
            early = plain[0].detach()[:, 4:6].abs().mean() / 0.05
            assert 0.57 < early < 0.58  # what torch does by itself: 0.1 / 0.962 / sqrt(0.001 / 0.0305) at step 31
    # torch keeps NAdam's product of momenta, and computes with a learning rate that is a tensor, in float32
    rounding = {"rtol": 1e-5, "atol": 1e-7} if "tensor" in name or "nadam" in name else {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(layer.u.detach()[:, 4:6], own[0].detach(), **rounding)
    torch.testing.assert_close(layer.v.detach()[4:6], own[1].detach(), **rounding)
    # old directions take the optimizer's own step
    assert torch.equal(layer.u.detach()[:, :4], plain[0].detach()[:, :4])
    assert torch.equal(layer.v.detach()[:4], plain[1].detach()[:4])
    assert not torch.equal(old_u, layer.u.detach()[:, :4])
    assert not torch.equal(old_v, layer.v.detach()[:4])
    assert not torch.allclose(layer.u.detach()[:, 4:6], plain[0].detach()[:, 4:6], rtol=1e-3)


def test_first_step_would_be_three_times_too_large():
    """Spec A9: lr 0.1 / sqrt(0.001) = 3.16 lr without the correction."""
    layer = layer_of()
    optimizer = torch.optim.Adam([layer.u, layer.v], lr=1e-3)
    for corrected in (False, True):
        controller = RankController(layer, optimizer, null_ranks=False, correct_steps=corrected)
        for p in (layer.u, layer.v):
            p.grad = torch.ones_like(p)
        optimizer.step()
        for p in (layer.u, layer.v):
            optimizer.state[p]["step"] += 20_000
        controller._change("", layer.rank + 2)
        for p in (layer.u, layer.v):
            p.grad = torch.ones_like(p)
        optimizer.step()
        size = layer.u.detach()[:, -2:].abs().mean().item() / 1e-3
        assert size == pytest.approx(1.0 if corrected else 3.162, rel=1e-3)
        controller.close()


def test_age_counts_steps_with_a_gradient_and_ends():
    layer = layer_of()
    optimizer = torch.optim.Adam([layer.u, layer.v], betas=(0.5, 0.6))
    controller = RankController(layer, optimizer, null_ranks=False)

    def step(factors=(0, 1)):
        for i, p in enumerate((layer.u, layer.v)):
            p.grad = torch.ones_like(p) if i in factors else None
        optimizer.step()

    step()
    controller._change("", 4)
    step()
    step(factors=(0,))
    assert [(c["factor"], c["directions"], c["age"]) for c in controller.state_dict()["young"][0]] == [
        ("u", [4, 5], 2),
        ("v", [4, 5], 1),
    ]
    for _ in range(34):  # 0.6^a < 2^-24 from a = 33 on
        step()
    assert controller.state_dict()["young"] == [[]]


def test_growth_before_the_first_step_makes_nobody_young():
    layer = layer_of()
    optimizer = torch.optim.Adam([layer.u, layer.v])
    controller = RankController(layer, optimizer, null_ranks=False)
    controller._change("", 4)
    assert controller.state_dict()["young"] == [[]]


def test_a_rotation_ends_youth_but_dead_directions_are_young():
    layer = layer_of()
    optimizer = torch.optim.Adam([layer.u, layer.v])
    controller = RankController(layer, optimizer, null_ranks=False)
    for p in (layer.u, layer.v):
        p.grad = torch.ones_like(p)
    optimizer.step()
    controller._change("", 4)
    with torch.no_grad():
        layer.u[:, 3:] = 0  # rank 3 of 6
    change = layer.resize(2, how="svd")
    controller._young[0].add("", change)
    young = controller.state_dict()["young"][0]
    assert [(c["directions"], c["age"]) for c in young] == [([3], 0), ([3], 0)]


def test_stage_two_ends_youth():
    layer = layer_of()
    optimizer = torch.optim.Adam([layer.u, layer.v])
    controller = RankController(layer, optimizer, null_ranks=False)
    for grow in (True, False):
        for p in (layer.u, layer.v):
            p.grad = torch.ones_like(p)
        optimizer.step()
        if grow:
            controller._change("", 4)
    assert controller.state_dict()["young"] != [[]]
    finalize(layer, optimizer, buffer=0)
    for p in (layer.u, layer.v):
        p.grad = torch.ones_like(p)
    optimizer.step()  # fewer directions than the youngest had
    controller.step()
    assert controller.state_dict()["young"] == [[]]


def test_what_is_known_of_optimizers():
    p = nn.Parameter(torch.zeros(2, 2))

    class Mine(torch.optim.Adam):
        pass

    assert corrects_steps(torch.optim.AdamW([p])) is True
    assert corrects_steps(torch.optim.SGD([p], lr=1)) is False
    assert corrects_steps(Mine([p])) is None
    layer = layer_of()
    with pytest.warns(UserWarning, match="how Mine counts its steps"):
        RankController(layer, Mine(layer.parameters()))
    RankController(layer, Mine(layer.parameters()), correct_steps=False)
    young = YoungDirections(torch.optim.SGD(layer.parameters(), lr=1), {"": layer})
    young.add("", layer.resize(4))
    assert young.cohorts == []
