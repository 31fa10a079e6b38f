"""What holds for every low-rank layer: it is a dense layer of low rank, and its rank changes without its function."""

import copy
import gc
import weakref
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.func import functional_call

from inrank import InRankConfig, InRankEfficientLinear, InRankLinear, LowRankLayer


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().double().norm() / b.detach().double().norm())


def test_equals_the_dense_layer_with_its_weight(case: Any) -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        layer, x = case.layer(dtype), case.input(dtype=dtype)
        dense = layer.to_dense()
        assert type(dense) is type(case.dense())
        assert dense.weight.shape == case.dense().weight.shape
        assert layer(x).dtype == dtype
        assert _relative(layer(x), dense(x)) < tolerance
        assert _relative(layer.weight, dense.weight) < tolerance
        matrix = layer.as_matrix(layer.dense_weight())
        assert torch.equal(layer.as_weight(matrix), layer.dense_weight())
        assert matrix.shape == (layer.groups, layer.rows // layer.groups, layer.columns)
        assert layer.matrix_shape == (layer.rows, layer.columns)


def test_starts_as_the_dense_layer_does(case: Any) -> None:
    layer, dense, x = case.layer(random=False), case.dense(), case.input(64)
    if layer.weight0 is not None:
        assert torch.equal(layer(x), dense(x))
        assert torch.equal(layer.weight0, dense.weight)
    else:  # of the same size, with fewer directions
        assert float(layer(x).detach().std()) == pytest.approx(float(dense(x).detach().std()), rel=0.25)
    names = {name for name, _ in layer.named_parameters()}
    assert names == {"u", "v"} | ({"bias"} if getattr(dense, "bias", None) is not None else set())


def test_gradients_by_finite_differences(case: Any) -> None:
    layer, x = case.layer(torch.float64, rank=2, buffer=1), case.input(2, torch.float64)
    parameters = {name: p for name, p in layer.named_parameters() if name in ("u", "v", "bias")}

    def call(*values: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(parameters, values, strict=True)), (x,))

    if getattr(layer, "padding_idx", None) is None:  # where the gradient of a row is dropped on purpose
        assert torch.autograd.gradcheck(call, tuple(parameters.values()), fast_mode=True)
    if x.is_floating_point():
        assert torch.autograd.gradcheck(layer, (x.requires_grad_(),), fast_mode=True)


@pytest.mark.parametrize("storage", ["resize", "reserve"])
def test_growth_does_not_change_the_function(case: Any, storage: str) -> None:
    for dtype in (torch.float64, torch.float32):
        layer = case.layer(dtype, storage=storage, max_rank=1.0)
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-2)
        full = layer.full_rank
        for rank in sorted({3, 4, min(6, full), full - 1, full}):
            x = case.input(33, dtype)
            before, kept = layer(x).detach(), layer.active
            identities = id(layer.u), id(layer.v)
            layer(x).square().mean().backward()
            change = layer.resize(rank)
            assert (id(layer.u), id(layer.v)) == identities
            assert layer.u.grad is None
            assert (change.kept, change.new_active, change.u_map) == (kept, layer.active, None)
            assert layer.rank == rank
            after = layer(x).detach()
            if dtype == torch.float64:
                assert torch.equal(after, before)  # not one bit
            else:
                assert _relative(after, before) < 1e-6
            # fresh directions: U = 0, V orthonormal to the others; they learn from the next step on
            u, v = layer.factors()
            assert float(u[..., kept:].abs().sum()) == 0
            cross = v[:, kept:] @ v[:, :kept].mT
            assert float(cross.abs().max() if cross.numel() else 0) < 1e-5
            layer(x).square().mean().backward()
            if change.added:
                assert float(layer.u.grad[:, kept : layer.active].abs().sum()) > 0
            optimizer.step()
            optimizer.zero_grad()
        assert layer.active == layer.full_rank


def test_first_growth_is_exact_in_every_type(case: Any) -> None:
    layer, x = case.layer(random=False, rank=1, buffer=1), case.input(16)
    if layer.weight0 is not None:
        before = layer(x)
        layer.resize(4)
        assert torch.equal(layer(x), before)  # D = 0


def test_svd_resize_drops_the_smallest_only(case: Any) -> None:
    layer, x = case.layer(torch.float64), case.input(dtype=torch.float64)
    before, s = layer.product(), layer.singular_values("product")
    layer.resize(layer.rank, layer.buffer, how="svd")
    torch.testing.assert_close(layer.product(), before)
    layer.resize(2, 0, how="svd")
    assert layer.active == layer.capacity == 2
    dropped = torch.linalg.matrix_norm(layer.product() - before, ord=2)
    torch.testing.assert_close(dropped, s[:, 2])
    u, v = layer.factors()
    torch.testing.assert_close(u.mT @ u, v @ v.mT, atol=1e-9, rtol=1e-9)
    assert layer(x).isfinite().all()


def test_change_maps_carry_gradients(case: Any) -> None:
    # g_U' = g_U G^T and g_V' = G^-T g_V are the gradients that the new factors would have had
    layer, x = case.layer(torch.float64), case.input(dtype=torch.float64)
    layer(x).square().sum().backward()
    old_u = layer.u.grad.reshape(layer.groups, -1, layer.active)
    old_v = layer.v.grad.reshape(layer.groups, layer.active, -1)
    change = layer.resize(layer.rank, layer.buffer, how="svd")
    layer(x).square().sum().backward()
    new_u = layer.u.grad.reshape(layer.groups, -1, layer.active)
    new_v = layer.v.grad.reshape(layer.groups, layer.active, -1)
    torch.testing.assert_close(old_u @ change.u_map.mT, new_u, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(change.v_map @ old_v, new_v, rtol=1e-8, atol=1e-8)
    assert float((old_u - new_u).abs().max()) > 1e-3  # copying them over would be wrong


def test_shrinking_then_growing_keeps_dead_directions_able_to_learn(case: Any) -> None:
    layer = case.layer(torch.float64, random=False, max_rank=1.0)
    layer.u.data.zero_()
    layer.resize(4, 1, how="svd")
    u, v = layer.factors()
    assert float(u.abs().max()) == 0
    assert bool((v.norm(dim=-1) > 1e-3).all())
    assert bool(torch.isfinite(v).all())


def test_rank_zero_buffer_zero_and_empty_batches(case: Any) -> None:
    for settings in ({"rank": 0, "buffer": 2}, {"rank": 0, "buffer": 0}, {"rank": 3, "buffer": 0}):
        for dtype in (torch.float32, torch.float64):
            layer = case.layer(dtype, random=False, **settings)
            for batch in (0, 2):
                x = case.input(batch, dtype)
                assert layer(x).shape == case.dense(dtype)(x).shape
            assert layer.singular_values().shape == (layer.groups, layer.full_rank)
            assert _relative(layer(x), layer.to_dense()(x)) < 1e-5 or settings["rank"] == settings["buffer"] == 0
            assert layer.resize(2, 1).new_active >= 3


def test_evaluation_and_repeated_forwards_never_change_ranks(case: Any) -> None:
    layer, x = case.layer(), case.input()
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    for training in (True, False):
        layer.train(training)
        for _ in range(30):
            layer(x)
    assert all(torch.equal(value, state[name]) for name, value in layer.state_dict().items())
    assert (layer.rank, layer.active) == (3, 5)


def test_a_grown_layer_saves_with_safetensors_at_once(case: Any, tmp_path: Any) -> None:
    for storage in ("resize", "reserve"):
        layer = case.layer(storage=storage, max_rank=0.7)
        layer.resize(5)
        layer.resize(4, 1, how="svd")
        path = tmp_path / f"{storage}.safetensors"
        safetensors.torch.save_file(layer.state_dict(), path)
        fresh = case.layer(storage=storage, max_rank=0.7)
        fresh.restore_ranks(layer.ranks())
        fresh.load_state_dict(safetensors.torch.load_file(path), strict=True)
        x = case.input()
        assert torch.equal(fresh(x), layer(x))
        assert torch.equal(fresh.singular_values(), layer.singular_values())
        other = case.layer(storage="resize", rank=1)
        with pytest.raises(RuntimeError, match="size mismatch"):
            other.load_state_dict(layer.state_dict())


def test_reserved_storage_never_changes_shape(case: Any) -> None:
    layer, x = case.layer(storage="reserve", max_rank=0.7), case.input()
    shapes = layer.u.shape, layer.v.shape
    layer.resize(5)
    layer.resize(2, 1, how="svd")
    assert (layer.u.shape, layer.v.shape) == shapes
    assert layer.active == 3
    twin = case.layer(storage="resize", max_rank=0.7)
    twin.resize(5)
    twin.resize(2, 1, how="svd")
    assert torch.equal(layer(x), twin(x))
    limits = layer.rank, layer.active, layer.max_rank
    with pytest.raises(ValueError, match="do not fit into"):
        layer.resize(layer.full_rank, 0)
    assert (layer.rank, layer.active, layer.max_rank) == limits


def test_old_tensors_are_released() -> None:
    layer = InRankEfficientLinear(32, 32, config=InRankConfig(rank=2, buffer=2))
    x = torch.randn(4, 32)
    layer(x).sum().backward()
    old = weakref.ref(layer.u.data.untyped_storage())
    size = layer.u.untyped_storage().nbytes()
    layer.resize(5)
    gc.collect()
    assert old() is None
    assert layer.u.untyped_storage().nbytes() == size // 4 * 7
    layer(x).sum().backward()
    assert layer.u.grad.shape == layer.u.shape


def test_update_spectrum_starts_at_zero_and_follows_training(case: Any) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for rank in (3, 5):
            layer = case.layer(dtype, random=False, max_rank=1.0)
            layer.resize(rank)
            assert not layer.singular_values("update").any()  # zero, not rounding errors, which every rule would read
    layer, x = case.layer(torch.float64, random=False), case.input(dtype=torch.float64)
    start = layer.as_matrix(layer.dense_weight())
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-2)
    for rank in (3, 5):
        layer.resize(rank)
        layer(x).square().mean().backward()
        optimizer.step()
    change = layer.as_matrix(layer.dense_weight()) - start
    expected = torch.linalg.svdvals(change)
    torch.testing.assert_close(layer.singular_values("update"), expected, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_and_autocast(case: Any, dtype: torch.dtype) -> None:
    exact, x = case.layer(), case.input()
    half = copy.deepcopy(exact).to(dtype)
    y = half(x.to(dtype) if x.is_floating_point() else x)
    assert y.dtype == dtype
    assert _relative(y, exact(x)) < 0.03
    assert half.singular_values().dtype == torch.float32
    assert _relative(half.dense_weight(torch.float32), exact.dense_weight()) < 0.02
    assert half.to_dense().weight.dtype == dtype
    half.resize(5)
    assert half.u.dtype == dtype
    assert half(x.to(dtype) if x.is_floating_point() else x).isfinite().all()
    with torch.autocast("cpu", dtype):
        assert _relative(exact(x), exact.to_dense()(x)) < 0.03
        # neither the rank check nor merging is rounded to the type of autocast
        inside = [exact.singular_values("product", method) for method in ("qr", "gram", "randomized")]
        merged = exact.to_dense().weight
    for method, values in zip(("qr", "gram", "randomized"), inside, strict=True):
        torch.testing.assert_close(values, exact.singular_values("product", method))
    assert torch.equal(merged, exact.to_dense().weight)


def test_a_copy_is_a_copy(case: Any) -> None:
    layer = case.layer()
    twin = copy.deepcopy(layer)
    twin.resize(5)
    assert (layer.rank, twin.rank) == (3, 5)
    layer.u.data.zero_()
    assert float(twin.u.detach().abs().sum()) > 0


def test_same_seed_same_layer_and_names_differ(case: Any) -> None:
    def build(name: str, seed: int = 0) -> LowRankLayer:
        layer = case.low_rank.from_dense(
            case.dense(), InRankConfig(rank=2, buffer=2, max_rank=1.0, seed=seed), name=name
        )
        layer.resize(4)
        return layer

    assert torch.equal(build("a").v, build("a").v)
    assert not torch.equal(build("a").v, build("b").v)
    assert not torch.equal(build("a").v, build("a", seed=1).v)


def test_not_finite_names_the_layer(case: Any) -> None:
    layer = case.layer()
    layer.v.data.view(-1)[0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"net\.layer.*factor V"):
        layer.singular_values()


def test_compiles_without_breaks_and_only_anew_after_a_change() -> None:
    torch._dynamo.reset()
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        compiled.append(1)
        return graph.forward

    for layer_type, pad, expected in ((InRankLinear, 1, 4), (InRankEfficientLinear, 16, 2)):
        compiled.clear()
        torch._dynamo.reset()
        layer = layer_type(64, 64, config=InRankConfig(rank=2, buffer=4, pad_to=pad))
        call = torch.compile(layer, backend=backend, fullgraph=True, dynamic=False)
        x = torch.randn(3, 64)
        for rank in (2, 5, 9, 14):
            layer.resize(rank)
            for _ in range(3):
                assert torch.equal(call(x), layer(x))
        assert len(compiled) == expected
    torch._dynamo.reset()


def test_every_kind_compiles(case: Any) -> None:
    torch._dynamo.reset()
    layer, x = case.layer(), case.input()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), layer(x))
    torch._dynamo.reset()


def test_padded_ranks() -> None:
    layer = InRankLinear(64, 64, config=InRankConfig(rank=2, buffer=4, pad_to=8, max_rank=20))
    assert [layer.resize(rank).new_active for rank in (2, 4, 5, 12, 13, 20)] == [8, 8, 16, 16, 24, 24]
    assert layer.buffer == 4


def test_code_that_reads_the_weight_gets_it() -> None:
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0).eval()
    block.linear1 = InRankLinear.from_dense(block.linear1, InRankConfig(rank=2, buffer=1))
    block.linear1.u.data.normal_()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        fast = block(x)  # nn.TransformerEncoderLayer's fused path takes .weight
    torch.testing.assert_close(fast, block(x.requires_grad_()), rtol=1e-4, atol=1e-5)
    block.linear1.weight.sum().backward()
    assert block.linear1.u.grad is not None


def test_mode_is_a_matter_of_the_class() -> None:
    assert float(InRankLinear(8, 8, config=InRankConfig(rank=1, buffer=1)).u.detach().abs().max()) == 0
    config = InRankConfig(mode="full", rank=1, buffer=1)
    assert float(InRankEfficientLinear(8, 8, config=config).u.detach().abs().max()) > 0
    assert InRankEfficientLinear(8, 8, config=config).config.mode == "efficient"


def _linear(**settings: Any) -> InRankLinear:
    return InRankLinear(16, 8, config=InRankConfig(**settings))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: _linear(rank=5, buffer=1, max_rank=4), ValueError, "rank 5 exceeds max_rank 4"),
        (lambda: _linear(rank=4, buffer=5), ValueError, r"rank 4 \+ buffer 5 exceeds 8"),
        (lambda: _linear(rank=2, buffer=2).resize(9), ValueError, r"rank 9 is not in 0\.\.8"),
        (lambda: _linear(rank=2, buffer=2).resize(2.5), ValueError, "rank 2.5 is not in"),
        (lambda: _linear(rank=2, buffer=2).resize(-1), ValueError, "rank -1"),
        (lambda: _linear(rank=2, buffer=2).resize(3, -1), ValueError, "buffer -1 is negative"),
        (lambda: _linear(rank=2, buffer=2).resize(3, how="glue"), ValueError, "unknown how 'glue'"),
        (lambda: _linear(rank=2, buffer=2).resize(4, how="slice"), ValueError, "do not fit into 4 stored"),
        (
            lambda: InRankEfficientLinear(8, 8, config=InRankConfig(rank=1, buffer=1, init="zero")),
            ValueError,
            "saddle whose gradients are zero",
        ),
        (
            lambda: InRankEfficientLinear(8, 8, config=InRankConfig(rank=1, buffer=1, init_scale=0.0)),
            ValueError,
            "saddle",
        ),
        (
            lambda: InRankEfficientLinear(
                8, 8, config=InRankConfig(rank=1, buffer=1, spectrum="product")
            ).singular_values("update"),
            ValueError,
            "initial factors are not kept",
        ),
        (
            lambda: InRankEfficientLinear(200, 300, config=InRankConfig.official(rank=2, buffer=100)),
            ValueError,
            r"rank 2 \+ buffer 100 exceeds 100",
        ),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_cap_of_the_official_layer() -> None:
    layer = InRankEfficientLinear(64, 64, config=InRankConfig.official(rank=2, buffer=8))
    assert (layer.max_rank, layer.largest_active, layer.capacity, layer.active) == (32, 32, 32, 10)


def test_text() -> None:
    assert "24 x 16, W_0 + U V, rank 2 + 1 of 16" in str(InRankLinear(16, 24, config=InRankConfig(rank=2, buffer=1)))
