"""Stage 2 and dense weights: what is dropped is what the bound says, moments follow, memory goes."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from inrank import InRankConfig, LowRankLayer, finalize, low_rank_layers, merge, summary, wrap


def _model(dtype: torch.dtype = torch.float64, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 20)).to(dtype)
    return wrap(model, config=InRankConfig.from_dict({"rank": 3, "buffer": 4, **settings}))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 20, generator=generator, dtype=torch.float64).to(next(model.parameters()).dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - x.roll(1, 1)).square().mean().backward()
        optimizer.step()
    return x


@pytest.mark.parametrize(
    "settings", [{"mode": "full"}, {"spectrum": "product"}, {"mode": "full", "storage": "reserve"}]
)
def test_outputs_change_by_what_is_dropped(settings: dict[str, Any]) -> None:
    model = _model(**settings)
    x = _train(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), 20)
    layers, inputs, before = low_rank_layers(model), {}, {}
    for name, layer in layers.items():
        layer.register_forward_pre_hook(lambda _, args, key=name: inputs.__setitem__(key, args[0].detach()))
    model(x)
    for name, layer in layers.items():
        before[name] = layer(inputs[name]).detach()
    spectra = {name: layer.singular_values("product")[0] for name, layer in layers.items()}
    report = finalize(model)
    assert [entry.name for entry in report.layers] == list(layers)
    for entry in report.layers:
        layer, s = layers[entry.name], spectra[entry.name]
        assert (entry.before, entry.after, layer.active, layer.capacity) == (7, 3, 3, 3)
        assert not layer.growing
        assert layer.buffer == 0
        assert entry.dropped == pytest.approx(float(s[3]))
        assert entry.dropped_norm == pytest.approx(float(s[3:].norm()))
        assert entry.largest == pytest.approx(float(s[0]))
        x_in = inputs[entry.name]
        change = (layer(x_in).detach() - before[entry.name]).norm(dim=-1)
        assert bool((change <= entry.bound * x_in.norm(dim=-1) * (1 + 1e-9)).all())
        assert float(change.max()) > 0
        u, v = layer.factors()
        torch.testing.assert_close(u[0].mT @ u[0], v[0] @ v[0].mT, rtol=1e-9, atol=1e-9)
    assert "7 -> 3" in str(report)
    assert finalize(model).layers == ()


def test_bound_of_a_convolution() -> None:
    torch.manual_seed(0)
    config = InRankConfig(rank=2, buffer=4, spectrum="product")
    layer = wrap(nn.Conv2d(6, 12, 3, padding=1, bias=False).double(), "", config=config, types=[nn.Conv2d])
    x = torch.randn(4, 6, 8, 8, dtype=torch.float64)
    before = layer(x)
    entry = finalize(layer).layers[0]
    assert entry.gain == pytest.approx(3.0)
    change = (layer(x) - before).detach().flatten(1).norm(dim=1)
    assert bool((change <= entry.bound * x.flatten(1).norm(dim=1)).all())


def test_where_the_rank_is_the_updates_the_start_is_not_cut_away() -> None:
    model = _model()  # efficient, rank of D = U V - U_0 V_0
    x = _train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = model(x).detach()
    report = finalize(model)
    assert [entry.after for entry in report.layers] == [7, 7]
    torch.testing.assert_close(model(x).detach(), before)
    assert all(layer.initial_u is None for layer in low_rank_layers(model).values())
    cut = _model()
    assert [entry.after for entry in finalize(cut, buffer=1).layers] == [4, 4]


def test_moments_follow_the_change_of_basis() -> None:
    # with momentum and lr 0, the buffer is the gradient; after finalize it must be the new factors' gradient
    model = _model(mode="full")
    _train(model, torch.optim.SGD(model.parameters(), lr=0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    x = _train(model, optimizer, 1)
    finalize(model, optimizer, buffer=4)
    model.zero_grad()
    (model(x) - x.roll(1, 1)).square().mean().backward()
    for parameter in model.parameters():
        torch.testing.assert_close(optimizer.state[parameter]["momentum_buffer"], parameter.grad)


@pytest.mark.parametrize("storage", ["resize", "reserve"])
def test_training_goes_on_and_old_memory_goes(storage: str) -> None:
    model = _model(torch.float32, storage=storage, mode="full")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    _train(model, optimizer)
    old = [weakref.ref(optimizer.state[layer.u]["exp_avg"]) for layer in low_rank_layers(model).values()]
    finalize(model, optimizer)
    gc.collect()
    assert all(reference() is None for reference in old)
    for layer in low_rank_layers(model).values():
        assert optimizer.state[layer.u]["exp_avg"].shape == layer.u.shape == (layer.rows, 3)
        assert optimizer.state[layer.v]["exp_avg_sq"].shape == layer.v.shape == (3, layer.columns)
    assert set(optimizer.state) == set(model.parameters())
    _train(model, optimizer)


def test_reserved_tensors_may_keep_their_shape() -> None:
    model = _model(storage="reserve", mode="full")
    shapes = [p.shape for p in model.parameters()]
    x = torch.randn(3, 20, dtype=torch.float64)
    finalize(model, release=False)
    assert [p.shape for p in model.parameters()] == shapes
    assert all(layer.active == 3 for layer in low_rank_layers(model).values())
    assert model(x).isfinite().all()


def test_official_layers_finalize_too() -> None:
    model = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40))
    wrap(model, config=InRankConfig.official(rank=2, buffer=5))
    finalize(model)
    assert [tuple(layer.u.shape) for layer in low_rank_layers(model).values()] == [(40, 2), (40, 2)]
    assert low_rank_layers(model)["0"].config.resolved_spectrum == "product"


def test_rank_zero() -> None:
    model = _model(mode="full", rank=0)
    optimizer = torch.optim.AdamW(model.parameters())
    x = _train(model, optimizer)
    assert [entry.after for entry in finalize(model, optimizer).layers] == [0, 0]
    assert model(x).shape == (16, 20)
    _train(model, optimizer)


def test_factors_of_several_optimizers() -> None:
    model = _model(spectrum="product")
    layers = low_rank_layers(model).values()
    biases = [p for p in model.parameters() if p.ndim == 1]
    halves = [
        torch.optim.Adam([layer.u for layer in layers], lr=1e-3),
        torch.optim.Adam([*(layer.v for layer in layers), *biases], lr=1e-3),
    ]
    for half in halves:
        _train(model, half, 2)
    finalize(model, halves)
    for layer in layers:
        assert halves[0].state[layer.u]["exp_avg"].shape == layer.u.shape == (layer.rows, 3)
        assert halves[1].state[layer.v]["exp_avg"].shape == layer.v.shape


def test_what_cannot_be_finalized_is_said_before_anything_changes() -> None:
    with pytest.raises(ValueError, match="no low-rank layer to finalize"):
        finalize(nn.Linear(3, 3))
    model = _model(spectrum="product")
    with pytest.raises(ValueError, match="layer 0: its factor u is not among the optimizer's parameters"):
        finalize(model, torch.optim.SGD([nn.Parameter(torch.ones(1))]))
    with pytest.raises(TypeError, match=r"the optimizer is a dict; a torch\.optim\.Optimizer is needed"):
        finalize(model, [{}])  # type: ignore[list-item]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[low_rank_layers(model)["2"].v]["odd"] = torch.zeros(3)
    with pytest.raises(TypeError, match="layer 2: SGD stores 'odd' for v"):
        finalize(model, optimizer)
    assert all(layer.growing and layer.buffer == 4 for layer in low_rank_layers(model).values())


def test_frozen_layers_need_no_optimizer() -> None:
    model = _model(spectrum="product")
    first = low_rank_layers(model)["0"].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad])
    assert len(finalize(model, optimizer).layers) == 2
    assert first.active == 3


def test_not_finite_names_the_layer() -> None:
    model = _model()
    low_rank_layers(model)["2"].u.data[0, 0] = float("inf")
    with pytest.raises(FloatingPointError, match="layer 2: factor U"):
        finalize(model)


def test_merge_gives_the_dense_model() -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        for mode in ("full", "efficient"):
            model = _model(dtype, mode=mode)
            x = _train(model, torch.optim.SGD(model.parameters(), lr=0.1))
            expected = model(x)
            assert merge(model) is model
            assert not low_rank_layers(model)
            assert not hasattr(model, "inrank_report")
            assert [type(m) for m in model] == [nn.Linear, nn.Tanh, nn.Linear]
            torch.testing.assert_close(model(x), expected, rtol=tolerance, atol=tolerance)
            _train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    single = wrap(nn.Linear(16, 32), config=InRankConfig(rank=2, buffer=2))
    assert type(merge(single)) is nn.Linear


def test_merge_keeps_shared_layers_and_gpt2_shared() -> None:
    shared = nn.Linear(16, 16)
    model = merge(wrap(nn.Sequential(shared, nn.ReLU(), shared), config=InRankConfig(rank=2, buffer=2)))
    assert model[0] is model[2]
    assert type(model[0]) is nn.Linear


class MatmulTypes(TorchDispatchMode):
    """Records the types in which matrices are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if "mm" in str(func):
            self.seen.add(result.dtype)
        return result


def test_half_types_are_merged_in_float32() -> None:
    # peft's threads: a merged bf16 model that differs, and takes 65 times as long on a CPU
    exact = _model(torch.float32, mode="full")
    x = _train(exact, torch.optim.SGD(exact.parameters(), lr=0.5), 20)
    half = copy.deepcopy(exact).bfloat16()
    exact.load_state_dict({name: value.float() for name, value in half.state_dict().items()})
    with MatmulTypes() as matmuls:
        merge(half)
    assert matmuls.seen == {torch.float32}
    layer = low_rank_layers(exact)["0"]
    assert torch.equal(half[0].weight, layer.dense_weight().bfloat16())  # rounded once
    torch.testing.assert_close(half(x.bfloat16()).float(), exact(x), rtol=0.05, atol=0.05)


@pytest.fixture
def _gloo(tmp_path: Any) -> Any:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_gloo")
def test_inside_ddp() -> None:
    model = nn.parallel.DistributedDataParallel(_model(storage="reserve", mode="full"))
    with pytest.raises(ValueError, match="release=False"):
        finalize(model)
    with pytest.raises(ValueError, match="merge the bare model"):
        merge(model)
    assert len(finalize(model, release=False).layers) == 2
    assert len(summary(model).wrapped) == 2
    resizing = nn.parallel.DistributedDataParallel(_model(mode="full"))
    with pytest.raises(ValueError, match="DDP"):
        finalize(resizing)
    assert all(isinstance(layer, LowRankLayer) for layer in low_rank_layers(model).values())
