"""Gridded files: orientation, meridians, refusals, missing values, statistics, trajectories."""

import builtins
import warnings

import numpy as np
import pytest
import xarray as xr

from sfno_jax.data.coordinates import arrange, find_axis
from sfno_jax.data.gridded import GridError, GridNotice, MissingValueError, open_gridded
from sfno_jax.data.normalization import Normalizer
from sfno_jax.data.trajectories import WindowSampler
from sfno_jax.grids import GRIDS, area_weights, latitudes

NLAT, NLON, TIMES = 9, 16, 6


def latitude(kind="equiangular", nlat=NLAT):
    return np.degrees(latitudes(kind, nlat))


LONGITUDE = 360 * np.arange(NLON) / NLON


def field(lat, lon, time=0.0):
    """A field that knows where it is."""
    lat, lon = np.meshgrid(np.radians(lat), np.radians(lon), indexing="ij")
    return 10 * np.sin(lat) + np.cos(lat) * np.cos(lon - 0.3) + time


def dataset(lat=None, lon=None, times=TIMES, dims=("time", "latitude", "longitude"), **attributes):
    lat = latitude() if lat is None else np.asarray(lat)
    lon = LONGITUDE if lon is None else np.asarray(lon)
    values = np.stack([field(lat, lon, t) for t in range(times)]).astype(np.float32)
    stamps = np.datetime64("2000-01-01", "ns") + np.arange(times) * np.timedelta64(6, "h")
    data = xr.DataArray(
        values,
        {"time": stamps, "latitude": lat, "longitude": lon},
        ("time", "latitude", "longitude"),
        attrs={"units": "K"},
    ).transpose(*dims)
    result = xr.Dataset({"t2m": data, "double": 2 * data, "scalar": ("time", np.arange(times))})
    result["double"].attrs.clear()
    for name, values in attributes.items():
        result[name].attrs = values
    return result


def write(path, data):
    if path.suffix == ".zarr":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr 3 about its own metadata
            data.to_zarr(path)
    else:
        data.to_netcdf(path, engine="h5netcdf")
    return path


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_plain_file(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", dataset())
    assert sorted(open_gridded(path).channels) == ["double", "t2m"]
    data = open_gridded(path, ["t2m", "double"])
    assert data.channels == ("t2m", "double")
    assert data.units == ("K", "")
    assert (data.grid.kind, data.shape) == ("equiangular", (TIMES, 2, NLAT, NLON))
    assert data.notices == ()
    read = data.read()
    assert read.dtype == np.float32
    want = np.stack([field(latitude(), LONGITUDE, t) for t in range(TIMES)])
    np.testing.assert_allclose(read[:, 0], want, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(read[:, 1], 2 * want, rtol=1e-6, atol=2e-5)
    np.testing.assert_array_equal(data.read(2, 4), read[2:4])
    assert data.times[1] - data.times[0] == np.timedelta64(6, "h")


ROLLED = np.arange(-8, 8) * 360 / NLON
REARRANGED = {
    "south to north": (latitude()[::-1], LONGITUDE, "south to north"),
    "from -180": (latitude(), ROLLED, "start at -180"),
    "wrapped in the middle": (latitude(), np.mod(ROLLED, 360), "start at 180"),
    "repeated meridian": (latitude(), np.append(LONGITUDE, 360), "repeated as 360"),
    "repeated at 180": (latitude(), np.append(ROLLED, 180), "repeated as 180"),
    "westward": (latitude(), LONGITUDE[::-1], "westward"),
}


@pytest.mark.parametrize("case", REARRANGED)
def test_rearranged_files_give_the_same_fields_with_a_notice(tmp_path, case):
    lat, lon, notice = REARRANGED[case]
    path = write(tmp_path / "a.nc", dataset(lat, lon))
    with pytest.warns(GridNotice, match=notice):
        data = open_gridded(path, ["t2m"])
    assert any(notice in text for text in data.notices)
    want = np.stack([field(latitude(), LONGITUDE, t) for t in range(TIMES)])
    np.testing.assert_allclose(data.read()[:, 0], want, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("kind", GRIDS)
@pytest.mark.parametrize("nlat", [32, 73, 721])
def test_every_grid_is_recognised_even_from_float32(kind, nlat):
    lat = latitude(kind, nlat).astype(np.float32)
    found = arrange(lat, LONGITUDE)
    assert found.grid.kind == kind
    assert found.notices == ()


def test_radians_and_names_without_attributes(tmp_path):
    lat, lon = np.radians(latitude()), np.radians(LONGITUDE)
    data = dataset(lat=latitude(), lon=LONGITUDE).assign_coords(latitude=lat, longitude=lon)
    data["latitude"].attrs["units"] = data["longitude"].attrs["units"] = "radians"
    assert open_gridded(write(tmp_path / "a.nc", data)).grid.nlat == NLAT
    odd = dataset().rename(latitude="rows", longitude="columns")
    odd["rows"].attrs["units"] = "degrees_north"
    odd["columns"].attrs["standard_name"] = "longitude"
    assert open_gridded(write(tmp_path / "b.nc", odd)).grid.nlon == NLON
    assert find_axis("latitude", {"LAT": None}) == "LAT"
    assert find_axis("level", {"LAT": None}) is None


def test_levels_become_channels_and_dimensions_may_be_in_any_order(tmp_path):
    data = dataset()
    levels = xr.concat([data.t2m, data.t2m + 100], xr.IndexVariable("level", [500, 850]))
    path = write(tmp_path / "a.nc", xr.Dataset({"z": levels.transpose("longitude", ..., "level")}))
    opened = open_gridded(path)
    assert opened.channels == ("z500", "z850")
    np.testing.assert_allclose(opened.read()[:, 1] - opened.read()[:, 0], 100, atol=1e-4)
    np.testing.assert_allclose(opened.read()[1, 0], field(latitude(), LONGITUDE, 1), atol=1e-5)


def test_a_single_state_without_time(tmp_path):
    data = open_gridded(write(tmp_path / "a.nc", dataset().isel(time=0, drop=True)))
    assert data.shape == (1, 2, NLAT, NLON)
    np.testing.assert_allclose(data.read()[0, 0], field(latitude(), LONGITUDE), atol=1e-5)


centres = 90 - (np.arange(NLAT) + 0.5) * 180 / NLAT
REFUSED = {
    "cell centres": (centres, LONGITUDE, r"offset from the pole by half a spacing.*Interpolate to 10"),
    "regional": (np.linspace(60, 20, NLAT), LONGITUDE, r"span only 20 to 60: a regional"),
    "unknown latitudes": (latitude() * 0.97, LONGITUDE, r"fit none of legendre-gauss"),
    "not monotonic": (latitude()[[0, 2, 1, *range(3, NLAT)]], LONGITUDE, r"not monotonic: 45 is fol"),
    "not degrees": (latitude() * 3, LONGITUDE, r"reach 270: not degrees"),
    "half the globe": (latitude(), LONGITUDE / 2, r"16 equal steps of 22.5 around the globe"),
    "irregular": (latitude(), LONGITUDE + 3 * (np.arange(NLON) == 5), r"from 90 to 115.5 is 25.5"),
    "offset": (latitude(), LONGITUDE + 11.25, r"none is 0 \(offset by 0.5 of a cell"),
    "odd": (latitude(), 360 * np.arange(15) / 15, r"15 longitudes: the transforms need an even"),
    "curvilinear": (latitude() * np.ones((2, 1)), LONGITUDE, r"curvilinear"),
    "one longitude": (latitude(), [0.0], r"at least 2 finite values"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_grids_that_do_not_fit_are_refused_with_the_reason(case):
    lat, lon, reason = REFUSED[case]
    with pytest.raises(GridError, match=reason):
        arrange(lat, lon)


def test_missing_values_are_refused_filled_or_left_out_of_statistics(tmp_path):
    data = dataset()
    data["t2m"][2, 3, 4] = np.nan
    data["t2m"][4, 1, 2] = np.nan
    path = write(tmp_path / "a.nc", data)
    with pytest.raises(
        MissingValueError, match=r"'t2m' has 2 missing values of 864, the first at time 2, row 3, column 4"
    ):
        open_gridded(path).read()
    assert np.isfinite(open_gridded(path).read(0, 2)).all()
    with pytest.raises(MissingValueError, match=r"time 4, row 1"):
        open_gridded(path).read(3, 6)
    filled = open_gridded(path, missing="mean").read()
    weights = area_weights("equiangular", NLAT, NLON)
    weights[3, 4] = 0
    mean = (weights * np.nan_to_num(filled[2, 0])).sum() / weights.sum()
    assert filled[2, 0, 3, 4] == pytest.approx(mean, rel=1e-5)
    kept = open_gridded(path, missing="keep")
    assert np.isnan(kept.read()).sum() == 2
    assert np.isfinite(kept.statistics().mean).all()
    data["t2m"][1] = np.nan
    with pytest.raises(MissingValueError, match="no value at all at time 1"):
        open_gridded(write(tmp_path / "b.nc", data), missing="mean").read()


def test_statistics_are_area_weighted_and_survive_json(tmp_path):
    data = open_gridded(write(tmp_path / "a.nc", dataset()))
    whole, pieces = data.statistics(chunk=TIMES), data.statistics(chunk=3)
    # the field is 10 sin(lat) + a first harmonic + time: mean 2.5, variance 100/3 + 1/3 + 35/12
    np.testing.assert_allclose(whole.mean, [2.5, 5.0], rtol=1e-5)
    np.testing.assert_allclose(whole.std[0], np.sqrt(101 / 3 + 35 / 12), rtol=1e-5)
    np.testing.assert_allclose(pieces.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(pieces.std, whole.std, rtol=1e-12)
    assert np.abs(data.read()[:, 0].std() - whole.std[0]) > 0.1  # grid points are not area
    whole.save(tmp_path / "n.json")
    back = Normalizer.load(tmp_path / "n.json")
    assert (back.channels, back.units) == (whole.channels, whole.units)
    np.testing.assert_array_equal(back.std, whole.std)
    np.testing.assert_array_equal(back.tendency_std, whole.tendency_std)


def test_trajectories_are_lazy_normalised_windows(tmp_path):
    data = open_gridded(write(tmp_path / "a.nc", dataset(times=10)))
    normalizer = data.statistics()
    train, validation = data.trajectories(normalizer).split(0.3)
    assert train.shape == (1, 7, 2, NLAT, NLON)
    assert validation.shape == (1, 3, 2, NLAT, NLON)
    batch = WindowSampler(train, 1, 3, (0,)).batch(0)
    assert batch.shape == (2, 3, 2, NLAT, NLON)
    whole = normalizer.normalize(data.read())
    starts = np.array([1, 4])
    windows = train.windows(np.zeros(2, int), starts, 2)
    np.testing.assert_allclose(windows, [whole[1:3], whole[4:6]], atol=1e-6)
    np.testing.assert_allclose(validation.load().states[0], whole[7:], atol=1e-6)
    with pytest.raises(IndexError, match="beyond the 7"):
        train.windows(np.zeros(1, int), np.array([6]), 2)


def test_normalizer_inverts_selects_and_keeps_dtype():
    rng = np.random.default_rng(0)
    scales = Normalizer(("a", "b"), np.array([1.0, -2]), np.array([2.0, 5]), ("K", "m"), np.array([1.0, 1]))
    x = rng.normal(size=(3, 2, 4, 5)).astype(np.float32)
    z = scales.normalize(x)
    assert z.dtype == np.float32
    np.testing.assert_allclose(z[:, 1], (x[:, 1] + 2) / 5, rtol=1e-6)
    np.testing.assert_allclose(scales.denormalize(z), x, atol=1e-5)
    assert scales.normalize(x.astype(np.float64)).dtype == np.float64
    np.testing.assert_array_equal(scales.tendency_weights(), [4, 25])
    swapped = scales.select(["b", "a"])
    np.testing.assert_array_equal(swapped.mean, [-2, 1])
    assert swapped.units == ("m", "K")


def test_without_xarray_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.nc", dataset())
    original = builtins.__import__

    def block(name, *args, **kwargs):
        if name == "xarray":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", block)
    with pytest.raises(ImportError, match=r"pip install 'sfno-jax\[io\]'"):
        open_gridded(path)
