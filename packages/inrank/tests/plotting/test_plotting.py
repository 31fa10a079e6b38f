import builtins
import functools

import numpy as np
import pytest
import torch

from inrank.linear_network import ThreeLayerLinear
from inrank.memory import PARTS
from inrank.plotting import (
    loss_figure,
    memory_figure,
    rank_figure,
    rank_map_figure,
    save_figure,
    spectrum_figure,
    theory_figure,
)

STEPS = np.arange(0, 400, 20)


def _decaying(values=48):
    return np.outer(STEPS / 400, 0.85 ** np.arange(values))


@functools.cache
def _runs():
    torch.set_num_threads(1)
    s = np.r_[10.0, 2.0, np.zeros(2)]
    return [ThreeLayerLinear.aligned(s, gain=a).flow(np.linspace(0, 2, 5)) for a in (0.3, 1.0)]


def _theory():
    return theory_figure(
        (0.3, 1.0),
        singular_values=(10.0, 2.0),
        unused=2,
        end=2.0,
        simulated=[(run.times, run.update_spectra[:, 0]) for run in _runs()],
    )


FIGURES = {
    "spectra": lambda: spectrum_figure(
        {f"blocks.{i}": (STEPS, _decaying()) for i in range(4)},
        ranks={"blocks.0": STEPS / 20 + 1},
        overlay={"blocks.0": _decaying(2)},
        title="D",
        note="energy rank",
    ),
    "spectra-log": lambda: spectrum_figure({"fc": (STEPS, _decaying())}, log=True),
    "ranks": lambda: rank_figure({"a": (STEPS, STEPS // 50), "b": (STEPS, STEPS // 90)}, null_rank=6, full_rank=10),
    "map": lambda: rank_map_figure(STEPS, ["a", "b", "c"], np.tile(STEPS / 400, (3, 1)), title="ranks"),
    "loss": lambda: loss_figure({"full": (STEPS, 3 - STEPS / 300), "low": (STEPS, [np.nan, *np.ones(19)])}, log=True),
    "memory": lambda: memory_figure(
        {"full": dict.fromkeys(PARTS, 10**7), "efficient": {"weights": 10**7}}, measured={"full": 61 * 10**6}
    ),
    "theory": _theory,
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn_and_small(name, tmp_path):
    path = save_figure(FIGURES[name](), tmp_path / "folder" / f"{name}.png")
    data = path.read_bytes()
    assert data[:4] == b"\x89PNG"
    assert 5_000 < len(data) < 200_000


def test_no_global_state():
    from matplotlib import pyplot

    for make in FIGURES.values():
        make()
    assert pyplot.get_fignums() == []


def test_same_input_same_file(tmp_path):
    first, second = (save_figure(FIGURES["ranks"](), tmp_path / f"{i}.png").read_bytes() for i in (1, 2))
    assert first == second


def test_null_model_line_and_staircase_hold_their_values():
    axes = FIGURES["ranks"]().axes[0]
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert list(lines["null model (no training)"]) == [6, 6]
    np.testing.assert_array_equal(lines["a"], STEPS // 50)


def test_theory_figure_shows_where_d_is_not_low_rank():
    axes = theory_figure((0.1, 1.0), unused=15).axes
    small, large = ([bar.get_height() for bar in a.patches] for a in axes[2:])
    assert sum(x > 0.1 * max(small) for x in small) == 5
    assert sum(x > 0.1 * max(large) for x in large) == 20


def test_measured_mark():
    axes = FIGURES["memory"]().axes[0]
    assert axes.lines[0].get_xdata() == pytest.approx([61.0])


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def absent(name, *rest, **options):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=r"pip install 'inrank\[plots\]'"):
        rank_figure({"a": ([0], [1])})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda p: spectrum_figure({}), "layers is empty"),
        (lambda p: spectrum_figure({"fc": ([1, 2], [[1.0]])}), r"layer 'fc' has values \(1, 1\) for steps \(2,\)"),
        (lambda p: rank_figure({}), "curves is empty"),
        (lambda p: rank_figure({"fc": ([1], [1, 2])}), r"'fc' has ranks \(2,\) for steps \(1,\)"),
        (lambda p: rank_map_figure([1], ["a"], [[1, 2]]), r"shares has shape \(1, 2\); expected \(1, 1\)"),
        (lambda p: loss_figure({}), "curves is empty"),
        (lambda p: loss_figure({"full": ([], [])}), r"'full' has losses \(0,\)"),
        (lambda p: memory_figure({}), "runs is empty"),
        (lambda p: memory_figure({"full": {"cache": 1}}), "'full' has unknown parts cache; known: weights"),
        (lambda p: theory_figure(()), "gains is empty"),
        (lambda p: theory_figure((0.0,)), "a has the value 0.0"),
        (lambda p: save_figure(FIGURES["ranks"](), p / "x.doc"), "doc"),
    ],
)
def test_bad_input(call, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        call(tmp_path)
