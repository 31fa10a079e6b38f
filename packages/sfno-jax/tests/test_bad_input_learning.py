"""Bad input to losses, metrics, data and training: one clear error each (argument, value, limit)."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from sfno_jax import losses, metrics
from sfno_jax.data.gridded import open_gridded
from sfno_jax.data.normalization import Normalizer
from sfno_jax.data.trajectories import ArrayTrajectories, WindowSampler
from sfno_jax.training import CheckpointError, CheckpointStore, ConfigError, load_config
from sfno_jax.training.rollout import evaluate_leads, evaluate_stability, rollout_chunks
from sfno_jax.training.stabiliser import Stabiliser
from sfno_jax.transforms import RealSHT

GRID = "legendre-gauss"
F = np.zeros((2, 3, 8, 16), np.float32)
W = losses.loss_weights(8, 16, GRID)
SHT = RealSHT(8, 16, grid=GRID)
SCHMIDT = RealSHT(8, 16, grid=GRID, norm="schmidt")
STATES = np.zeros((2, 5, 3, 8, 16), np.float32)
NAN = STATES.copy()
NAN[1, 2, 0, 3, 4] = np.nan
NORMAL = Normalizer(("a", "b", "c"), np.zeros(3), np.ones(3))
IDENTITY = jax.tree_util.Partial(lambda x: x)

BAD = {
    # losses and metrics
    "float16": (lambda: losses.l1_loss(F.astype(np.float16), F, W), TypeError, r"prediction.*float16"),
    "integers": (lambda: metrics.rmse(F.astype(int), F, W), TypeError, r"prediction.*int64"),
    "float64 without x64": (
        lambda: losses.l2_loss(F, F.astype(np.float64), W), TypeError, r"target is float64.*enable_x64"),
    "other shapes": (
        lambda: losses.l1_loss(F, F[:1], W), ValueError, r"\(2, 3, 8, 16\) and \(1, 3, 8, 16\)"),
    "other shapes, metrics": (lambda: metrics.mae(F, F[:1], W), ValueError, r"same shape"),
    "one axis": (lambda: losses.l1_loss(F[0, 0, 0], F[0, 0, 0], W), ValueError, r"at least 2 axes"),
    "weights of another grid": (
        lambda: losses.l1_loss(F, F, W[:4]), ValueError, r"weights must have shape \(8, 16\).*\(4, 16\)"),
    "channel weights": (
        lambda: losses.l1_loss(F, F, W, channel_weights=[1, 2]), ValueError, r"\(3,\), got \(2,\)"),
    "p below one": (lambda: losses.geometric_lp_loss(F, F, W, p=0.5), ValueError, r"p must be.*0\.5"),
    "spectral p": (lambda: losses.spectral_lp_loss(F, F, SHT, p=0), ValueError, r"p must be.*0"),
    "not orthonormal": (lambda: losses.h1_loss(F, F, SCHMIDT), ValueError, r'norm="schmidt"'),
    "not orthonormal, amse": (lambda: losses.amse_loss(F, F, SCHMIDT), ValueError, r"Parseval"),
    "unknown loss": (
        lambda: losses.SphereLoss.create("l3", 8, 16, GRID), ValueError, r"'l3': choose one of l1"),
    "unknown grid": (lambda: losses.loss_weights(8, 16, "gauss"), ValueError, r"gauss"),
    "unknown channel weights": (
        lambda: losses.named_channel_weights(["z500"], "automatic"), ValueError, r"'automatic'"),
    "one member, fair": (
        lambda: losses.crps_loss(F[None], F, W), ValueError, r"at least 2 members, got 1"),
    "member shape": (
        lambda: metrics.crps_ensemble(F[None], F[:1]), ValueError, r"\(member, 1, 3, 8, 16\)"),
    "one member, spread": (lambda: metrics.spread(F[:1], W), ValueError, r"at least 2 members"),
    "acc reduction": (
        lambda: metrics.anomaly_correlation(F, F, W, climatology=0.0, reduce="mean"),
        ValueError, r"'mean'"),
    "acc without batch": (
        lambda: metrics.anomaly_correlation(F[0, 0], F[0, 0], W, climatology=0.0),
        ValueError, r"batch"),
    # data
    "trajectory axes": (lambda: ArrayTrajectories(F), ValueError, r"\(2, 3, 8, 16\)"),
    "trajectory dtype": (lambda: ArrayTrajectories(STATES.astype(int)), ValueError, r"int64"),
    "nan in trajectories": (
        lambda: ArrayTrajectories(NAN), ValueError, r"1 NaN .*\(1, 2, 0, 3, 4\)"),
    "window too long": (
        lambda: WindowSampler(ArrayTrajectories(STATES), 5, 1, (0,)),
        ValueError, r"n_future = 5 needs .* 6 states, these have 5"),
    "batch too large": (
        lambda: WindowSampler(ArrayTrajectories(STATES), 1, 9, (0,)),
        ValueError, r"batch_size = 9 is more than the 8 windows"),
    "constant channel": (
        lambda: Normalizer.fit([STATES[0]], W, "abc"), ValueError, r"std of channel 'a' is 0"),
    "no data": (lambda: Normalizer.fit([], W, "abc"), ValueError, r"no data"),
    "chunk shape": (lambda: Normalizer.fit([F], W, "ab"), ValueError, r"channel=2.*\(2, 3, 8, 16\)"),
    "length of mean": (
        lambda: Normalizer(("a",), np.zeros(2), np.ones(1)), ValueError, r"mean must have one value"),
    "length of units": (
        lambda: Normalizer(("a",), np.zeros(1), np.ones(1), ("K", "m")), ValueError, r"units"),
    "nan mean": (
        lambda: Normalizer(("a",), np.array([np.nan]), np.ones(1)), ValueError, r"mean of channel 'a'"),
    "missing channels": (
        lambda: NORMAL.select(["a", "x", "y"]), ValueError, r"no normalisation for x, y; .*a, b, c"),
    "normalise channels": (lambda: NORMAL.normalize(F[:, :2]), ValueError, r"channel=3"),
    "no tendencies": (NORMAL.tendency_weights, ValueError, r"tendencies=True"),
    "no normalisation file": (lambda: Normalizer.load("nowhere.json"), FileNotFoundError, r"nowhere"),
    "no gridded file": (lambda: open_gridded("nowhere.nc"), FileNotFoundError, r"nowhere\.nc"),
    "missing option": (lambda: open_gridded("a.nc", missing="skip"), ValueError, r"'skip'"),
    # training
    "no configuration": (lambda: load_config("swe-smal"), ConfigError, r"presets swe-paper, swe-small"),
    "unknown key": (lambda: load_config("swe-small", ["sed=1"]), ConfigError, r"sed .*'seed'"),
    "no checkpoint": (
        lambda: CheckpointStore.load("nowhere/step-1"), CheckpointError, r"incomplete: No such file"),
    "stabiliser channel": (
        lambda: Stabiliser.create(8, 16, GRID, ("a",), conserve=("b",)), ValueError, r"no channel 'b'"),
    "stabiliser twice": (
        lambda: Stabiliser.create(8, 16, GRID, ("a",), conserve=("a",), zero_mean=("a",)),
        ValueError, r"share"),
    "rollout shape": (lambda: next(rollout_chunks(IDENTITY, F[0], 3)), ValueError, r"\(3, 8, 16\)"),
    "no steps": (lambda: next(rollout_chunks(IDENTITY, F, 0)), ValueError, r"at least 1, got 0"),
    "lead beyond the truth": (
        lambda: evaluate_leads(IDENTITY, STATES, (1, 5), GRID), ValueError, r"lead 5 needs 6"),
    "leads in disorder": (
        lambda: evaluate_leads(IDENTITY, STATES, (2, 1), GRID), ValueError, r"increase"),
    "truth axes": (lambda: evaluate_leads(IDENTITY, F, (1,), GRID), ValueError, r"\(2, 3, 8, 16\)"),
    "reference axes": (
        lambda: evaluate_stability(IDENTITY, F, F, GRID), ValueError, r"reference must be"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call()


def test_files_that_are_not_what_they_should_be(tmp_path: Path):
    path = tmp_path / "n.json"
    path.write_text('{"channels": ["a"]}')
    with pytest.raises(ValueError, match="not a normalisation file"):
        Normalizer.load(path)
    torn = tmp_path / "torn.nc"
    torn.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(ValueError, match="cannot be read as netCDF or Zarr"):
        open_gridded(torn)


def test_gridded_variables_are_checked(tmp_path: Path):
    lat, lon = np.linspace(90, -90, 9), np.arange(16) * 22.5
    coords = {"lat": lat, "lon": lon, "run": [0, 1]}
    values = np.zeros((2, 9, 16), np.float32)
    data = xr.Dataset({"u": (("run", "lat", "lon"), values), "v": ("lat", lat)}, coords)
    path = tmp_path / "a.nc"
    data.to_netcdf(path, engine="h5netcdf")
    with pytest.raises(ValueError, match=r"no global field 'v', 'w'; there are u"):
        open_gridded(path, ["v", "w"])
    with pytest.raises(ValueError, match=r"'u' has the dimensions run, lat, lon.*along run first"):
        open_gridded(path)
    data.drop_vars("lon").to_netcdf(tmp_path / "b.nc", engine="h5netcdf")
    with pytest.raises(ValueError, match=r"no longitude coordinate"):
        open_gridded(tmp_path / "b.nc")
    series = xr.Dataset({"u": (("time", "lat", "lon"), np.ones((3, 9, 16)))}, {"lat": lat, "lon": lon})
    series["time"] = np.array(["2000-01-01", "2000-01-02", "2000-01-04"], "datetime64[ns]")
    series.to_netcdf(tmp_path / "c.nc", engine="h5netcdf")
    opened = open_gridded(tmp_path / "c.nc")
    with pytest.raises(ValueError, match=r"time steps are not equal: .* after time index 1"):
        opened.trajectories()
    with pytest.raises(IndexError, match=r"0 to 3"):
        opened.read(2, 5)


def test_nan_in_a_loss_is_not_hidden():
    broken = F.copy()
    broken[0, 0, 0, 0] = np.nan
    for name in losses.LOSSES:
        loss = losses.SphereLoss.create(name, 8, 16, GRID)
        assert jnp.isnan(loss(broken, F)), name
