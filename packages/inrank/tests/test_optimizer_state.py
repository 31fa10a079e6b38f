import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from inrank import InRankConfig, InRankEfficientLinear, InRankLinear
from inrank.layers import InRankEfficientConv2d
from inrank.optimizer_state import apply_factor_change, check_optimizer_state, check_owned, unwrapped_optimizer

torch.set_num_threads(1)

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "sgd-nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {}),
    "adam-amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adamw-foreach": (torch.optim.AdamW, {"foreach": True}),
    "adamw-fused": (torch.optim.AdamW, {"fused": True}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {"initial_accumulator_value": 0.1}),
    "adadelta": (torch.optim.Adadelta, {}),
    "adamax": (torch.optim.Adamax, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "asgd": (torch.optim.ASGD, {}),
    "rprop": (torch.optim.Rprop, {}),
    "adafactor": (torch.optim.Adafactor, {}),
    "muon": (torch.optim.Muon, {}),
}


def make(storage="resize", rank=3, dtype=torch.float64, kind=InRankLinear, **changes):
    torch.manual_seed(0)
    config = InRankConfig(rank=rank, buffer=2, max_rank=8, storage=storage, **changes)
    layer = kind(10, 12, config=config).to(dtype)
    with torch.no_grad():  # a start at zero has no singular directions to rotate
        layer.u.normal_()
        layer.u[:, layer.active :] = 0
    return layer


def train(layer, optimizer, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(20, 10, dtype=layer.u.dtype, generator=generator)
    y = torch.randn(20, 12, dtype=layer.u.dtype, generator=generator)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (layer(x) - y).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("storage", ["resize", "reserve"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_growth_keeps_every_optimizers_state_to_the_bit(name, storage):
    kind, settings = OPTIMIZERS[name]
    layer = make(storage)
    factors = [p for p in layer.parameters() if p.ndim == 2]
    optimizer = kind(factors, lr=1e-3, **settings)
    train(layer, optimizer, 3)
    before = {
        (i, k): v.clone() if torch.is_tensor(v) else v
        for i, p in enumerate(factors)
        for k, v in optimizer.state[p].items()
    }
    change = layer.resize(6)
    apply_factor_change(optimizer, layer, change)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in factors]
    for i, p in enumerate(factors):
        for key, value in optimizer.state[p].items():
            old = before[i, key]
            if not torch.is_tensor(value) or value.ndim == 0:
                assert value == old
                continue
            axis = 1 if p is layer.u else 0
            kept = min(5, old.shape[axis])
            assert torch.equal(value.narrow(axis, 0, kept), old.narrow(axis, 0, kept)), key
            assert value.shape[axis] == (p.shape[axis] if old.shape[axis] > 1 else 1)
            fresh = value.narrow(axis, kept, value.shape[axis] - kept)
            if key == "ax":
                assert torch.equal(fresh, p.detach().narrow(axis, kept, p.shape[axis] - kept))
            else:
                start = {"sum": 0.1, "step_size": 1e-3}.get(key, 0.0)
                assert torch.equal(fresh, torch.full_like(fresh, start)), key
    assert train(layer, optimizer, 5) < 10  # trains on, at the new shape


@pytest.mark.parametrize("storage", ["resize", "reserve"])
@pytest.mark.parametrize(
    ("kind", "settings", "key"),
    [
        (torch.optim.SGD, {"momentum": 0.9}, "momentum_buffer"),
        (torch.optim.AdamW, {"weight_decay": 0.0}, "exp_avg"),
        (torch.optim.RMSprop, {"centered": True}, "grad_avg"),
    ],
)
def test_carried_first_moment_is_that_of_the_same_gradients_replayed_in_the_new_basis(storage, kind, settings, key):
    """m_U' = m_U G^T and m_V' = G^-T m_V, against an optimizer that saw the transformed gradients all along."""
    layer = make(storage)
    optimizer = kind(layer.parameters(), lr=0.0, **settings)
    generator = torch.Generator().manual_seed(3)
    gradients = [
        (torch.randn(layer.u.shape, generator=generator, dtype=torch.float64),
         torch.randn(layer.v.shape, generator=generator, dtype=torch.float64))
        for _ in range(7)
    ]  # fmt: skip
    active = layer.active
    for g_u, g_v in gradients:
        g_u[:, active:], g_v[active:] = 0, 0
        layer.u.grad, layer.v.grad = g_u.clone(), g_v.clone()
        optimizer.step()
    u, v = (factor.clone() for factor in layer.factors())
    change = layer.resize(2, how="svd")
    apply_factor_change(optimizer, layer, change)
    new_u, new_v = layer.factors()
    # the change of basis from the factors themselves: V' = G V, and U' = U H with H = G^-1 on the kept directions
    g = torch.linalg.lstsq(v[0].mT, new_v[0, : change.kept].mT).solution.mT
    h = torch.linalg.lstsq(u[0], new_u[0][:, : change.kept]).solution
    replayed_u, replayed_v = nn.Parameter(new_u[0].clone()), nn.Parameter(new_v[0].clone())
    replay = kind([replayed_u, replayed_v], lr=0.0, **settings)
    for g_u, g_v in gradients:
        replayed_u.grad, replayed_v.grad = g_u[:, :active] @ g.mT, h.mT @ g_v[:active]
        replay.step()
    carried_u, carried_v = optimizer.state[layer.u][key], optimizer.state[layer.v][key]
    torch.testing.assert_close(carried_u[:, : layer.active], replay.state[replayed_u][key], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(carried_v[: layer.active], replay.state[replayed_v][key], rtol=1e-11, atol=1e-12)
    assert not torch.allclose(carried_u[:, : layer.active], (gradients[-1][0][:, : layer.active]))


def test_gradients_really_transform_so():
    """The rule itself: autograd's gradients before and after a rotation of all directions."""
    layer = make(rank=3)
    x = torch.randn(7, 10, dtype=torch.float64)
    before = torch.autograd.grad((layer(x) ** 3).sum(), [layer.u, layer.v])
    change = layer.resize(3, how="svd")
    after = torch.autograd.grad((layer(x) ** 3).sum(), [layer.u, layer.v])
    assert change.kept == change.old_active == 5
    torch.testing.assert_close(after[0], before[0] @ change.u_map[0].mT, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(after[1], change.v_map[0] @ before[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_on_after_a_rotation(name):
    kind, settings = OPTIMIZERS[name]
    layer = make()
    optimizer = kind([layer.u, layer.v], lr=1e-3, **settings)
    train(layer, optimizer, 3)
    change = layer.resize(2, how="svd")
    apply_factor_change(optimizer, layer, change)
    for p in (layer.u, layer.v):
        for key, value in optimizer.state[p].items():
            if torch.is_tensor(value) and value.ndim:
                assert torch.isfinite(value).all()
                if key in ("exp_avg_sq", "square_avg", "sum", "exp_inf", "acc_delta", "max_exp_avg_sq", "row_var"):
                    assert (value >= 0).all()
    before = train(layer, optimizer, 1)
    assert train(layer, optimizer, 4) < before * 1.5


def test_second_moments_follow_the_squares_of_the_map():
    layer = make()
    optimizer = torch.optim.Adam([layer.u, layer.v])
    train(layer, optimizer, 3)
    old = {p: optimizer.state[p]["exp_avg_sq"].clone() for p in (layer.u, layer.v)}
    change = layer.resize(2, how="svd")
    apply_factor_change(optimizer, layer, change)
    torch.testing.assert_close(
        optimizer.state[layer.u]["exp_avg_sq"], old[layer.u] @ change.u_map[0].square().mT, rtol=1e-12, atol=0
    )
    torch.testing.assert_close(
        optimizer.state[layer.v]["exp_avg_sq"], change.v_map[0].square() @ old[layer.v], rtol=1e-12, atol=0
    )


def test_steps_and_averaged_parameters_follow_the_factors_map():
    """RMSprop's momentum is a step: U + s d_U must become U' + s d_U' with the same product."""
    layer = make()
    optimizer = torch.optim.RMSprop([layer.u, layer.v], momentum=0.9)
    train(layer, optimizer, 3)
    d_u = optimizer.state[layer.u]["momentum_buffer"].clone()
    u, v = layer.u.detach().clone(), layer.v.detach().clone()
    change = layer.resize(3, how="svd")
    apply_factor_change(optimizer, layer, change)
    moved = layer.u.detach() + 0.1 * optimizer.state[layer.u]["momentum_buffer"]
    torch.testing.assert_close(moved @ layer.v.detach(), (u + 0.1 * d_u) @ v, rtol=1e-10, atol=1e-10)


def test_old_tensors_are_released():
    """axolotl PR#1414: nothing of the old shape may stay alive after a resize."""
    layer = make()
    optimizer = torch.optim.Adam(layer.parameters(), amsgrad=True)
    train(layer, optimizer, 2)
    old = [
        weakref.ref(v) for p in (layer.u, layer.v) for v in optimizer.state[p].values() if torch.is_tensor(v) and v.ndim
    ]
    tensors = sum(torch.is_tensor(v) for s in optimizer.state.values() for v in s.values())
    apply_factor_change(optimizer, layer, layer.resize(6))
    gc.collect()
    assert len(old) == 6
    assert [ref() for ref in old] == [None] * 6
    assert sum(torch.is_tensor(v) for s in optimizer.state.values() for v in s.values()) == tensors
    assert len(optimizer.state) == 3


def test_reserved_state_is_changed_in_place():
    layer = make("reserve")
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    train(layer, optimizer, 2)
    addresses = [optimizer.state[p]["exp_avg"].data_ptr() for p in (layer.u, layer.v)]
    apply_factor_change(optimizer, layer, layer.resize(2, how="svd"))
    assert [optimizer.state[p]["exp_avg"].data_ptr() for p in (layer.u, layer.v)] == addresses
    assert not optimizer.state[layer.u]["exp_avg"][:, layer.active :].any()


def test_a_slice_of_reserved_directions_leaves_the_state_alone():
    layer = make("reserve", kind=InRankEfficientLinear)
    optimizer = torch.optim.AdamW(layer.parameters())
    train(layer, optimizer, 2)
    before = optimizer.state[layer.u]["exp_avg"].clone()
    apply_factor_change(optimizer, layer, layer.resize(5, how="slice"))
    assert torch.equal(optimizer.state[layer.u]["exp_avg"], before)


def test_a_loss_kept_from_before_the_change_does_not_break_the_next_step():
    layer = make()
    optimizer = torch.optim.Adam(layer.parameters())
    x = torch.randn(4, 10, dtype=torch.float64)
    seen = []
    layer.u.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.shape))
    losses = []
    for rank in (3, 5, 7):
        if rank > 3:
            apply_factor_change(optimizer, layer, layer.resize(rank))
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)  # holds the graph, and with it the gradient accumulators of the old shapes
    assert seen == [(12, 5), (12, 7), (12, 9)]


class Odd(torch.optim.SGD):
    """Stores what it likes."""

    def __init__(self, parameters, stored):
        super().__init__(parameters, lr=0.1)
        for p in self.param_groups[0]["params"]:
            self.state[p]["odd"] = stored(p)


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        (torch.zeros_like, r"Odd stores 'odd' for u, a torch.float64 tensor of shape \(12, 5\)"),
        (
            lambda p: torch.zeros(7),
            r"float32 tensor of shape \(7,\)",
        ),
        (lambda p: torch.zeros(p.shape, dtype=torch.uint8), "torch.uint8"),
        (lambda p: [1, 2], "a list"),
    ],
)
def test_unknown_state_is_named(stored, says):
    layer = make()
    optimizer = Odd(layer.parameters(), stored)
    with pytest.raises(TypeError, match=says):
        check_optimizer_state(optimizer, layer)


def test_unknown_state_can_be_explained():
    layer = make()
    optimizer = Odd(layer.parameters(), torch.ones_like)
    apply_factor_change(optimizer, layer, layer.resize(4), kinds={"Odd.odd": "gradient"})
    assert optimizer.state[layer.u]["odd"].shape == layer.u.shape
    with pytest.raises(ValueError, match="kind 'first' of optimizer state 'odd' is unknown"):
        check_optimizer_state(optimizer, layer, kinds={"odd": "first"})


def test_state_that_does_not_fit_is_an_error():
    layer = make()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    optimizer.state[layer.u]["momentum_buffer"] = torch.zeros(12, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"shape \(12, 2\) does not fit u of shape \(12, 8\), which had 5 directions"):
        apply_factor_change(optimizer, layer, layer.resize(6))


@pytest.mark.parametrize(("kind", "key"), [(torch.optim.Adam, "exp_avg"), (torch.optim.Adam, "exp_avg_sq")])
@pytest.mark.parametrize("factor", ["u", "v"])
def test_adam_would_step_elsewhere_if_a_carried_moment_were_off(kind, key, factor):
    """Growth leaves the trajectory of the kept directions as it is; a moment that is off by 1e-6 does not."""

    def grown(perturbation):
        layer = make()
        optimizer = kind([layer.u, layer.v], lr=1e-3)
        train(layer, optimizer, 3)
        plain = copy.deepcopy((layer, optimizer))
        apply_factor_change(optimizer, layer, layer.resize(6))
        optimizer.state[getattr(layer, factor)][key].mul_(1 + perturbation)
        train(layer, optimizer, 1)
        return layer, train_copy(plain)

    def train_copy(plain):
        layer, optimizer = plain
        train(layer, optimizer, 1)
        return layer

    def assert_same(pair):
        layer, plain = pair
        torch.testing.assert_close(layer.u[:, :5], plain.u[:, :5], rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(layer.v[:5], plain.v[:5], rtol=1e-13, atol=1e-14)

    assert_same(grown(0.0))
    with pytest.raises(AssertionError, match="not close"):
        assert_same(grown(1e-6))


def test_a_frozen_factor_that_may_grow_is_explained():
    layer = make()
    layer.u.requires_grad_(False)
    optimizer = torch.optim.SGD([layer.v])
    with pytest.raises(ValueError, match=r"factor u is frozen .* set growing = False"):
        check_owned([optimizer], {"fc": layer})


def test_grouped_factors_are_carried_by_each_groups_map():
    torch.manual_seed(0)
    config = InRankConfig(rank=2, buffer=2)
    layer = InRankEfficientConv2d.from_dense(nn.Conv2d(10, 12, 1, groups=2), config).double()
    optimizer = torch.optim.Adam(layer.parameters())
    for p in (layer.u, layer.v):
        p.grad = torch.randn_like(p)
    optimizer.step()
    moments = [optimizer.state[p]["exp_avg"].clone() for p in (layer.u, layer.v)]
    change = layer.resize(1, how="svd")
    apply_factor_change(optimizer, layer, change)
    for g in range(2):
        torch.testing.assert_close(
            optimizer.state[layer.u]["exp_avg"][6 * g : 6 * g + 6], moments[0][6 * g : 6 * g + 6] @ change.u_map[g].mT
        )
        torch.testing.assert_close(optimizer.state[layer.v]["exp_avg"][g], change.v_map[g] @ moments[1][g])
    # averages over rows that all groups share
    optimizer = torch.optim.Adafactor([layer.u])
    layer.u.grad = torch.randn_like(layer.u)
    optimizer.step()
    apply_factor_change(optimizer, layer, layer.resize(1, how="svd"))
    assert optimizer.state[layer.u]["col_var"].shape == (1, layer.capacity)


def test_wrapped_optimizers_are_looked_into():
    accelerate = pytest.importorskip("accelerate")
    layer = make()
    optimizer = torch.optim.Adam(layer.parameters())
    prepared = accelerate.Accelerator(cpu=True).prepare(optimizer)
    assert unwrapped_optimizer(prepared) is optimizer
