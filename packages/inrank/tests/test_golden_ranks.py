"""The official layer's training, replayed: ranks, ratios, losses, and what dropping the buffer does."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from inrank import InRankConfig, InRankEfficientLinear
from inrank.controller import RankController
from inrank.criteria import explained_variance_ratio, official_rank

GOLDEN = Path(__file__).parent / "golden"


def _replay(name: str, threshold: float | None = None) -> tuple[Any, dict[str, Any], InRankEfficientLinear]:
    golden = np.load(GOLDEN / f"rank_trace_{name}.npz")
    cfg = json.loads(str(golden["cfg"]))
    config = InRankConfig.official(
        rank=cfg["init_modes"], buffer=cfg["buffer_modes"], threshold=threshold or cfg["threshold"]
    )
    layer = InRankEfficientLinear(cfg["in_features"], cfg["out_features"], cfg["bias"], config=config)
    with torch.no_grad():
        layer.v.copy_(torch.from_numpy(golden["A0"]))
        layer.u.copy_(torch.from_numpy(golden["B0"]))
        layer.bias.zero_()
    optimizers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    optimizer = optimizers[cfg["optimizer"]](layer.parameters(), lr=cfg["lr"])
    x, target = torch.from_numpy(golden["X"]), torch.from_numpy(golden["W_target"])
    seen: dict[str, Any] = {"rank": [], "ratio": [], "loss": []}
    ratio = 0.0
    for step in range(cfg["steps"]):
        count = step + 1
        if count > cfg["warmup_iter"] and count % cfg["gap_iter"] == 0:
            s = layer.singular_values()[0]
            rank = official_rank(s, layer.rank, config.buffer, layer.max_rank, config.threshold)
            ratio = float(explained_variance_ratio(s, rank))
            layer.resize(rank, how="slice")
        batch = x[step % len(x)]
        loss = (layer(batch) - batch @ target.T).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for key, value in (("rank", layer.rank), ("ratio", ratio), ("loss", loss.item())):
            seen[key].append(value)
    return golden, seen, layer


def _relative(a: Tensor, b: np.ndarray) -> float:
    reference = torch.from_numpy(b)
    return float((a.detach() - reference).norm() / reference.norm())


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_official_trace(name: str) -> None:
    golden, seen, layer = _replay(name)
    assert seen["rank"] == golden["rank"].tolist()
    np.testing.assert_allclose(seen["ratio"], golden["ratio"], atol=1e-3)
    np.testing.assert_allclose(seen["loss"][:50], golden["loss"][:50], rtol=1e-3)
    np.testing.assert_allclose(seen["loss"], golden["loss"], rtol=2e-2)
    x = torch.from_numpy(golden["x_test"])
    whole = layer(x).detach()
    active, rank = layer.active, layer.rank

    layer.resize(rank, 0, how="slice")
    assert _relative(layer(x), golden["y_drop_buffer"]) < 2e-2
    # cutting the buffer off is no small thing: why stage 2 needs the singular vectors
    assert float((layer(x) - whole).detach().abs().max()) > 1.0
    layer.resize(rank, active - rank, how="slice")
    assert torch.equal(layer(x), whole)

    s = layer.singular_values()[0]
    layer.resize(rank, 0, how="svd")
    u, v = layer.factors()
    assert _relative((u @ v)[0], golden["B_resized"] @ golden["A_resized"]) < 1e-3
    assert _relative(layer(x), golden["y_resized"]) < 1e-2
    changed = torch.linalg.vector_norm(layer(x).detach() - whole, dim=-1)
    assert bool((changed <= s[rank] * torch.linalg.vector_norm(x, dim=-1) * (1 + 1e-4)).all())
    # balanced: both factors carry the square roots of the singular values
    torch.testing.assert_close(u[0].norm(dim=0), v[0].norm(dim=1), rtol=1e-5, atol=1e-6)


def test_another_threshold_gives_another_trace() -> None:
    golden, seen, _ = _replay("sgd", threshold=0.7)
    assert seen["rank"] != golden["rank"].tolist()


def test_cap_of_the_official_rule() -> None:
    # GPT-2 small: 384 - 100 - 1, whatever the spectrum says; official ranks in the null model end below it
    flat = torch.ones(768) + torch.rand(768, generator=torch.Generator().manual_seed(0)).sort(descending=True)[0]
    assert official_rank(flat, 280, 100, 384, 0.9) == 283


def _official_run(name: str, perturb: float = 1.0) -> tuple[Any, Any, Any, Any]:
    """The same by a controller."""
    golden = np.load(GOLDEN / f"rank_trace_{name}.npz")
    how = json.loads(str(golden["cfg"]))
    config = InRankConfig.official(
        rank=how["init_modes"],
        buffer=how["buffer_modes"],
        threshold=how["threshold"],
        warmup_steps=how["warmup_iter"],
        check_every=how["gap_iter"],
    )
    layer = InRankEfficientLinear(how["in_features"], how["out_features"], config=config)
    with torch.no_grad():
        layer.u.copy_(torch.tensor(golden["B0"]) * perturb)
        layer.v.copy_(torch.tensor(golden["A0"]))
        layer.bias.zero_()
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name](layer.parameters(), lr=how["lr"])
    controller = RankController(layer, optimizer)
    x, target = torch.tensor(golden["X"]), torch.tensor(golden["W_target"])
    ranks, ratios, losses = [], [], []
    for step in range(how["steps"]):
        batch = x[step % 8]
        loss = (layer(batch) - batch @ target.T).square().mean()
        optimizer.zero_grad()
        loss.backward()
        ranks.append(layer.rank)
        ratios.append(controller._states[""].last_ratio or 0.0)
        losses.append(loss.item())
        optimizer.step()
        controller.step()
    return golden, np.array(ranks), np.array(ratios), np.array(losses)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_strict_ranks_ratios_and_losses_are_the_official_releases(name: str) -> None:
    golden, ranks, ratios, losses = _official_run(name)
    np.testing.assert_array_equal(ranks, golden["rank"])
    np.testing.assert_allclose(ratios, golden["ratio"], atol=1e-3)
    np.testing.assert_allclose(losses[:50], golden["loss"][:50], rtol=1e-3)
    np.testing.assert_allclose(losses, golden["loss"], rtol=2e-2)


def test_the_official_trace_would_notice_other_factors() -> None:
    golden, ranks, _, losses = _official_run("sgd", perturb=3.0)
    assert (ranks != golden["rank"]).any() or not np.allclose(losses[:50], golden["loss"][:50], rtol=1e-3)


def test_the_official_cap_saturates_loudly() -> None:
    """Trap 4: the official rank stops at R - b - 1, though the threshold is not met, and says nothing."""
    torch.manual_seed(0)
    config = InRankConfig.official(rank=2, buffer=3, threshold=0.9999, warmup_steps=1, check_every=1, max_rank=8)
    layer = InRankEfficientLinear(16, 20, config=config)
    controller = RankController(layer, None)
    with pytest.warns(UserWarning, match=r"the largest rank is reached .*\(4, wants [5-8]\)"):
        _ = [controller.step() for _ in range(6)]
    assert layer.rank == 8 - 3 - 1
    assert [event.kind for event in controller.events].count("saturated") == 1
