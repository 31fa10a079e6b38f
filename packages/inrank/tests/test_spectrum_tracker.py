import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from inrank.config import InRankConfig
from inrank.layers import InRankEfficientLinear, InRankLinear
from inrank.linear_network import ThreeLayerLinear
from inrank.matrix_spectrum import matrix_spectrum
from inrank.spectrum_history import SpectrumHistory, rank_metrics
from inrank.spectrum_tracker import SpectrumTracker, factor_spectrum
from inrank.theory import mode_strength


def _network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3)
    )


def _train(model, optimizer, tracker, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(16, 2, 6, 6, generator=generator)
        model(x).square().mean().backward()
        optimizer.step()
        if tracker:
            tracker.step()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("method", ["gram", "svd"])
def test_spectra_are_those_of_the_difference(kind, method):
    model = _network()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    tracker = SpectrumTracker(model, every=2, method=method)
    _train(model, kind(model.parameters(), lr=0.01), tracker, 5)
    assert tracker.layers == ["0", "3", "4"]  # batch norm and biases are vectors
    assert tracker.history.steps == [2, 4]
    record = tracker.record()[1]
    update = (model[3].weight - start["3.weight"]).detach().double()
    np.testing.assert_allclose(record.update, torch.linalg.svdvals(update), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(record.weight, torch.linalg.svdvals(model[3].weight.detach()), rtol=1e-5)
    assert (record.step, record.shape, record.full_rank) == (5, (8, 64), 8)
    assert record.update_ranks.norm == pytest.approx(float(update.norm()), rel=1e-5)
    blocks = (model[0].weight - start["0.weight"]).detach().double().reshape(2, 2, 9)
    whole = torch.block_diag(*blocks)
    np.testing.assert_allclose(
        tracker.history.of("0")[-1].update, torch.linalg.svdvals(whole)[:4], rtol=1e-5, atol=1e-7
    )


def test_low_rank_layers_through_growth():
    config = InRankConfig(rank=3, buffer=3)
    torch.manual_seed(0)
    model = nn.Sequential(InRankEfficientLinear(20, 16, config=config), InRankLinear(16, 12, config=config))
    start = [layer.dense_weight(torch.float64) for layer in model]
    tracker = SpectrumTracker(model)
    assert all(r.update_ranks.energy == 0 and not r.update.any() for r in tracker.record(0))  # rounding is no rank
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
        tracker.step()
        if step == 1:
            model[0].resize(5, generator=torch.Generator().manual_seed(0))
    for layer, before, record in zip(model, start, tracker.record(), strict=True):
        dense = layer.dense_weight(torch.float64)
        np.testing.assert_allclose(record.update, torch.linalg.svdvals(dense - before), atol=1e-6)
        np.testing.assert_allclose(record.weight, torch.linalg.svdvals(dense), atol=1e-6)


def test_spectra_follow_the_theory():
    """A deep linear network trained by SGD in torch, against the closed form of its modes."""
    s = np.array([6.0, 3.0, 1.0])
    linear = ThreeLayerLinear.aligned(s, gain=0.2, seed=1)
    model = nn.Sequential(*(nn.Linear(3, 3, bias=False, dtype=torch.float64) for _ in range(3)))
    for layer, weight in zip(model, linear.weights, strict=True):
        layer.weight.data = weight.clone()
    tracker = SpectrumTracker(model, every=200)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    whitened = torch.eye(3, dtype=torch.float64)
    for _ in range(1600):
        optimizer.zero_grad()
        (0.5 * (linear.target.T - model(whitened)).square().sum()).backward()
        optimizer.step()
        tracker.step()
    for layer in tracker.layers:
        steps, spectra = tracker.history.spectra(layer)
        expected = -np.sort(-np.abs(mode_strength(steps[:, None] * 1e-3, s, 0.2) - 0.2), axis=1)
        np.testing.assert_allclose(spectra, expected, atol=0.02)
    ranks = tracker.history.ranks(metric="stable")["0"]
    assert (ranks[2] < 1.2, ranks[-1] > 1.5) == (True, True)


@pytest.mark.parametrize("keep", ["disk", "memory", "half"])
def test_folder_and_memory_hold_the_same(tmp_path, keep):
    in_memory, on_disk = (
        SpectrumTracker(model := _network(), folder=folder, keep=kept)
        for folder, kept in ((None, "memory"), (tmp_path, keep))
    )
    for tracker in (in_memory, on_disk):
        _train(tracker.model, torch.optim.SGD(tracker.model.parameters(), lr=0.1), tracker, 3)
    assert model is on_disk.model
    loaded = SpectrumHistory.load(tmp_path)
    assert loaded.steps == in_memory.history.steps == [1, 2, 3]
    for mine, other in zip(in_memory.history.records, loaded.records, strict=True):
        np.testing.assert_allclose(mine.weight, other.weight)
        floor = 3e-4 * mine.weight_ranks.norm if keep == "half" else 0
        np.testing.assert_allclose(mine.update, other.update, atol=floor)
        assert (mine.layer, mine.shape, mine.weight_ranks) == (other.layer, other.shape, other.weight_ranks)
    assert (tmp_path / "initial.safetensors").exists() == (keep == "disk")


def test_resume_goes_on_as_if_never_stopped(tmp_path):
    def run(folder, stops):
        model = _network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tracker = SpectrumTracker(model, folder=folder)
        saved = None
        for step in range(4):
            _train(model, optimizer, tracker, 1, seed=step)
            if step == 1:
                saved = {k: v.clone() for k, v in model.state_dict().items()}
            if stops and step == 2:  # killed after a step that the checkpoint does not have, in the midst of a line
                with (folder / "spectra.jsonl").open("a") as file:
                    file.write('{"step": 9')
                model.load_state_dict(saved)
                tracker = SpectrumTracker(model, folder=folder, resume=True)
                tracker.steps = 2
                _train(model, optimizer, tracker, 1, seed=2)
        return SpectrumHistory.load(folder)

    whole, resumed = run(tmp_path / "a", False), run(tmp_path / "b", True)
    assert [r.to_line() for r in whole.records] == [r.to_line() for r in resumed.records]
    for mine, other in zip(whole.records, resumed.records, strict=True):
        np.testing.assert_array_equal(mine.update, other.update)


def test_include_exclude_and_shared_weights():
    model = nn.ModuleDict({"embed": nn.Embedding(9, 4), "fc": nn.Linear(4, 4), "head": nn.Linear(4, 9)})
    model["head"].weight = model["embed"].weight
    assert SpectrumTracker(model).layers == ["embed", "fc"]
    assert SpectrumTracker(model, include=nn.Linear).layers == ["fc"]
    assert SpectrumTracker(model, exclude="fc").layers == ["embed"]
    attention = nn.MultiheadAttention(4, 2)
    assert SpectrumTracker(attention).layers == ["in_proj_weight", "out_proj"]


def test_leading_values_keep_exact_energy():
    generator = torch.Generator().manual_seed(0)
    u, _ = torch.linalg.qr(torch.randn(80, 40, generator=generator, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(60, 40, generator=generator, dtype=torch.float64))
    s = 0.7 ** torch.arange(40, dtype=torch.float64)
    some = matrix_spectrum((u * s @ v.T)[None], top=10, generator=torch.Generator().manual_seed(1))
    np.testing.assert_allclose(some.s, s[:10], rtol=1e-5)
    whole = rank_metrics(s.numpy(), threshold=0.95)
    leading = rank_metrics(some.s.numpy(), threshold=0.95, full_rank=some.full_rank, norm=some.norm)
    assert (leading.energy, leading.stable) == (whole.energy, pytest.approx(whole.stable, rel=1e-4))
    assert (leading.variance, leading.entropy) == (None, None)
    assert rank_metrics([1.0, 1.0], full_rank=9, norm=3.0).energy is None
    model = nn.Linear(60, 80)
    tracker = SpectrumTracker(model, top=5)
    nn.init.zeros_(model.weight)
    assert tracker.record(1)[0].update.shape == (5,)
    assert np.isnan(tracker.history.ranks(metric="entropy")["weight"]).all()


@settings(max_examples=25)
@given(m=st.integers(1, 12), n=st.integers(1, 12), groups=st.integers(1, 3), seed=st.integers(0, 99))
def test_methods_agree(m, n, groups, seed):
    a = torch.randn(groups, m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    exact = torch.linalg.svdvals(torch.block_diag(*a))[: groups * min(m, n)]
    for method in ("gram", "svd"):
        np.testing.assert_allclose(matrix_spectrum(a, method=method).s, exact, rtol=1e-5, atol=1e-6)
    eye = torch.eye(n, dtype=torch.float64).expand(groups, n, n)
    np.testing.assert_allclose(factor_spectrum(a, eye).s, exact, rtol=1e-5, atol=1e-6)


def test_not_finite_names_layer_and_step():
    model = _network()
    tracker = SpectrumTracker(model)
    model[3].weight.data[0, 0] = torch.nan
    with pytest.raises(FloatingPointError, match=r"layer 3 at step 1: .* not finite"):
        tracker.step()


def test_replaced_layer_is_said():
    model = nn.Sequential(nn.Linear(4, 4))
    tracker = SpectrumTracker(model)
    model[0] = nn.Linear(4, 4)
    with pytest.raises(RuntimeError, match=r"'0' was replaced .* after inrank.wrap"):
        tracker.step()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda f: SpectrumTracker(nn.ReLU()), "matches no layer"),
        (lambda f: SpectrumTracker(_network(), include="fc9"), r"'fc9'.* matches no layer; candidates: .*Linear"),
        (lambda f: SpectrumTracker(_network(), every=0), "every is 0"),
        (lambda f: SpectrumTracker(_network(), keep="tape"), "keep is 'tape'; known: memory, half, disk"),
        (lambda f: SpectrumTracker(_network(), keep="disk"), "need a folder"),
        (lambda f: SpectrumTracker(_network(), folder=f, keep="half", resume=True), "only keep='disk'"),
        (lambda f: SpectrumTracker(_network(), method="qr"), "unknown method 'qr'"),
        (lambda f: SpectrumTracker(_network(), threshold=0.0), "threshold is 0.0"),
        (lambda f: SpectrumTracker(_network(), top=0), "top is 0"),
        (lambda f: SpectrumTracker(_network(), folder=f, resume=True), "without W_0"),
        (lambda f: [SpectrumTracker(_network(), folder=f) for _ in range(2)], "of another run; take another folder"),
        (
            lambda f: [SpectrumTracker(nn.Linear(2, 2), folder=f), SpectrumTracker(_network(), folder=f, resume=True)],
            "no W_0 of 0/weight",
        ),
        (lambda f: SpectrumTracker(_network()).history.of("3"), "no layer '3' was recorded"),
        (lambda f: SpectrumHistory().ranks(metric="nuclear"), "no metric 'nuclear'"),
        (lambda f: rank_metrics([1.0], threshold=2.0), "threshold is 2.0"),
        (lambda f: rank_metrics([]), "one or more; given"),
        (lambda f: matrix_spectrum(torch.eye(3)[None], method="x"), "unknown method 'x'"),
        (lambda f: matrix_spectrum(torch.eye(3)[None], top=0), "top is 0"),
    ],
)
def test_bad_input(call, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        call(tmp_path)


def test_history_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no spectra\.jsonl"):
        SpectrumHistory.load(tmp_path)
    model = _network()
    tracker = SpectrumTracker(model, folder=tmp_path, weights=False)
    _train(model, torch.optim.SGD(model.parameters(), lr=0.1), tracker, 1)
    with pytest.raises(ValueError, match="weights=True"):
        tracker.history.spectra("3", "weight")
    with pytest.raises(ValueError, match="kind is 'w'"):
        tracker.history.spectra("3", "w")
    (tmp_path / "spectra.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(ValueError, match=r"line 1 of .* is not a record"):
        SpectrumHistory.load(tmp_path)
