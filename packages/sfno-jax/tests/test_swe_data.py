"""Shallow-water data: trajectories, pairs, statistics, cache."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from sfno_jax.data.shallow_water import (
    CHANNELS,
    ShallowWaterPairs,
    TrajectoryData,
    cached_trajectories,
    fit_normalizer,
    generate_trajectories,
)
from sfno_jax.grids import area_weights
from sfno_jax.physics import ShallowWaterSolver


@pytest.fixture(scope="module")
def solver() -> ShallowWaterSolver:
    return ShallowWaterSolver(16, 32, 600.0, lmax=6)


@pytest.fixture(scope="module")
def trajectories(solver: ShallowWaterSolver) -> np.ndarray:
    return generate_trajectories(solver, 3, 4, 1, 7, batch_size=2)


def test_trajectories_are_what_the_solver_makes(solver: ShallowWaterSolver, trajectories: np.ndarray) -> None:
    assert trajectories.shape == (3, 5, 3, 16, 32)
    assert trajectories.dtype == np.float32
    state = solver.from_grid(trajectories[:2, 0])
    for hour in range(5):
        want = np.asarray(solver.to_grid(state))
        error = np.abs(trajectories[:2, hour] - want).max((0, 2, 3))
        assert (error < 1e-3 * want.std((0, 2, 3))).all()
        state = solver.integrate(state, 6)
    # Winds of a fifth of the wave speed, as documented: see test_random_state_statistics.
    calm = generate_trajectories(solver, 2, 1, 1, 7, mach=0.1)
    np.testing.assert_allclose(2 * calm[:, 0, 1], trajectories[:2, 0, 1], atol=1e-9)


def test_trajectories_do_not_depend_on_the_batch(solver: ShallowWaterSolver, trajectories: np.ndarray) -> None:
    calls: list[tuple[int, int]] = []
    got = generate_trajectories(solver, 5, 4, 1, 7, batch_size=3, progress=lambda a, b: calls.append((a, b)))[:3]
    assert calls == [(3, 5), (5, 5)]
    spread = trajectories.std((0, 1, 3, 4))
    assert (np.abs(got - trajectories).max((0, 1, 3, 4)) < 1e-3 * spread).all()
    other = generate_trajectories(solver, 3, 4, 1, jax.random.key(8), batch_size=3)
    assert (np.abs(other - trajectories).max((0, 1, 3, 4)) > spread).all()


def test_spin_up_starts_later(solver: ShallowWaterSolver, trajectories: np.ndarray) -> None:
    got = generate_trajectories(solver, 3, 2, 1, 7, spin_up_hours=2, batch_size=2)
    spread = trajectories.std((0, 1, 3, 4))
    assert (np.abs(got - trajectories[:, 2:]).max((0, 1, 3, 4)) < 1e-3 * spread).all()


def test_statistics(solver: ShallowWaterSolver, trajectories: np.ndarray) -> None:
    normalizer = fit_normalizer(solver, trajectories)
    assert normalizer.channels == CHANNELS
    weights = area_weights("legendre-gauss", 16, 32) / (4 * np.pi)
    x = trajectories.astype(np.float64)
    mean = (x * weights).sum((-2, -1)).mean((0, 1))
    np.testing.assert_allclose(normalizer.mean[0], mean[0], rtol=1e-9)
    z = normalizer.normalize(trajectories)
    assert z.dtype == np.float32
    square = (z.astype(np.float64) ** 2 * weights).sum((-2, -1)).mean((0, 1))
    np.testing.assert_allclose(square, 1, rtol=1e-3)
    one = fit_normalizer(solver, trajectories, "one-sample")
    np.testing.assert_allclose(one.std, trajectories[0, 0].std((1, 2), ddof=1), rtol=1e-4)
    assert abs(one.std[1] / normalizer.std[1] - 1) > 1e-3
    with pytest.raises(ValueError, match=r"method='aera'.*'area'"):
        fit_normalizer(solver, trajectories, "aera")
    with pytest.raises(ValueError, match="trajectories have shape"):
        fit_normalizer(solver, trajectories[0])


def test_pairs_along_trajectories(solver: ShallowWaterSolver) -> None:
    pairs = ShallowWaterPairs(solver, batch_size=2, trajectory_hours=3, seed=5, normalizer=None)
    batches = list(itertools.islice(pairs, 6))
    # Two blocks of three batches hold every pair of their trajectories once.
    for block in range(2):
        states = generate_trajectories(solver, 2, 3, 1, (5, block))
        want = {(a.tobytes(), b.tobytes()) for t in states for a, b in itertools.pairwise(t)}
        got = {
            (a.tobytes(), b.tobytes()) for x, y in batches[3 * block : 3 * block + 3] for a, b in zip(x, y, strict=True)
        }
        assert got == want
        assert len(want) == 6
    # Any batch, in any order, is the same.
    again = ShallowWaterPairs(solver, batch_size=2, trajectory_hours=3, seed=5, normalizer=None)
    for number in (4, 0):
        for a, b in zip(again.batch(number), batches[number], strict=True):
            np.testing.assert_array_equal(a, b)
    other = ShallowWaterPairs(solver, batch_size=2, trajectory_hours=3, seed=6, normalizer=None)
    assert not (other.batch(0)[0] == batches[0][0]).all()


def test_independent_pairs_and_length(solver: ShallowWaterSolver) -> None:
    pairs = ShallowWaterPairs(solver, batch_size=2, length=2, draw="independent")
    assert len(pairs) == 2
    (x, y), (x2, _) = pairs
    assert x.shape == y.shape == (2, 3, 16, 32)
    assert x.dtype == np.float32
    assert not (x == x2).any(axis=(-1, -2, -3)).all()
    # z-scores, and a target that is the input an hour later.
    assert 0.3 < np.abs(x).mean() < 2
    assert pairs.normalizer is not None
    state = solver.from_grid(pairs.normalizer.denormalize(x))
    want = pairs.normalizer.normalize(np.asarray(solver.to_grid(solver.integrate(state, 6))))
    np.testing.assert_allclose(y, want, atol=2e-2)
    assert np.abs(y - x).mean() > 0.1
    with pytest.raises(IndexError, match="batch 2 of 2"):
        pairs.batch(2)
    with pytest.raises(TypeError, match="no end"):
        len(ShallowWaterPairs(solver, normalizer=None))


def test_cache(solver: ShallowWaterSolver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached_trajectories(tmp_path, solver, 2, 2, 1, 3)
    folder = next(tmp_path.iterdir())
    assert sorted(f.name for f in folder.iterdir()) == ["description.json", "normalizer.json", "states.safetensors"]

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("generated again")

    with monkeypatch.context() as patch:
        patch.setattr("sfno_jax.data.shallow_water.generate_trajectories", refuse)
        second = cached_trajectories(tmp_path, solver, 2, 2, 1, 3)
        with pytest.raises(AssertionError, match="generated again"):
            cached_trajectories(tmp_path, solver, 2, 2, 1, 4)
        viscous = ShallowWaterSolver(16, 32, 600.0, lmax=6, hyperdiffusion_time=3600.0)
        with pytest.raises(AssertionError, match="generated again"):
            cached_trajectories(tmp_path, viscous, 2, 2, 1, 3)
    np.testing.assert_array_equal(first.states, second.states)
    np.testing.assert_array_equal(first.normalizer.mean, second.normalizer.mean)
    assert second.description["solver"] == dataclasses.asdict(solver.parameters)
    assert abs(float(second.normalized.mean())) < 0.1
    (folder / "description.json").unlink()  # as after a kill while writing
    with pytest.raises(FileNotFoundError, match=r"description\.json is missing"):
        TrajectoryData.load(folder)
    np.testing.assert_array_equal(cached_trajectories(tmp_path, solver, 2, 2, 1, 3).states, first.states)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n=0"),
        ({"dt_hours": 0.25}, r"dt_hours \(900\) must be a positive multiple of the solver's dt \(600\)"),
        ({"hours": 1.5}, r"hours \(1.5\) must be a positive multiple of dt_hours \(1\)"),
        ({"hours": 0}, r"hours \(0\)"),
        ({"spin_up_hours": 0.2}, r"spin_up_hours \(720\)"),
        ({"spin_up_hours": -1}, r"spin_up_hours \(-3600\)"),
        ({"mach": -0.1}, "mach=-0.1"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_bad_trajectories(solver: ShallowWaterSolver, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate_trajectories(solver, **{"n": 1, "hours": 2, "dt_hours": 1, "key": 0, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"draw": "random"}, "draw='random'"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"length": -1}, "length=-1"),
        ({"normalizer": "minmax"}, "normalizer='minmax'"),
    ],
)
def test_bad_pairs(solver: ShallowWaterSolver, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShallowWaterPairs(solver, **arguments)
