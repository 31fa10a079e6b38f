"""Real fields: ERA5 at 500 hPa ships with the package, EGM96 comes from PROJ's data; both against reference values."""

import os
import struct

import jax
import numpy as np
import pytest

from sfno_jax.differential import vorticity_divergence
from sfno_jax.grids import SphereGrid
from sfno_jax.samples import EGM96_VARIABLE, SAMPLES, egm96, egm96_file, era5_500hpa, load_sample
from sfno_jax.spectral import power_spectrum
from sfno_jax.transforms import InverseRealSHT, RealSHT, RealVectorSHT

RADIUS = 6.37122e6


def _relative(x, y):
    return np.abs(np.asarray(x) - y).max() / np.abs(y).max()


@pytest.fixture(scope="module")
def geoid():
    try:
        egm96_file()
    except FileNotFoundError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    return egm96()


def test_era5_is_the_reference_field(golden):
    sample, reference = era5_500hpa(), golden("era5_tl31_500hPa")
    assert sample.grid == SphereGrid(32, 64, "legendre-gauss")
    for name in ("u", "v", "geopotential"):
        assert sample[name].dtype == np.float32
        np.testing.assert_array_equal(sample[name], reference[name])
    np.testing.assert_array_equal(sample.wind, sample.stack(["u", "v"]))
    assert "Contains modified Copernicus Climate Change Service information" in sample.attribution
    assert "Contains modified Copernicus Climate Change Service information" in era5_500hpa.__doc__


def test_era5_lies_as_the_conventions_say():
    z = era5_500hpa()["geopotential"]
    assert z[:4].mean() < z[14:18].mean()  # high pressure surfaces are low where it is cold: rows run from north ...
    u = era5_500hpa()["u"]
    assert u[6:10].mean() > 5 > u[15:17].mean()  # ... and the westerlies blow eastward


def test_era5_vorticity_and_divergence(golden):
    reference = golden("era5_tl31_500hPa")
    with jax.enable_x64(True):
        vsht = RealVectorSHT(32, 64, 32, 32, "legendre-gauss", csphase=False)
        isht = InverseRealSHT(32, 64, 32, 32, "legendre-gauss", csphase=False)
        vrtdiv = vorticity_divergence(era5_500hpa().wind.astype(np.float64), vsht, RADIUS)
        fields = isht(vrtdiv)
        for i, name in enumerate(("vrt_grid", "div_grid")):
            assert _relative(vrtdiv[i], reference["vrtdiv_coeffs_nocs"][i]) < 1e-5
            assert _relative(fields[i], reference[name]) < 1e-5
            assert _relative(fields[i] * (1 + 3e-5), reference[name]) > 1e-5  # the test can fail


def test_era5_spectrum(golden):
    reference = golden("era5_tl31_500hPa")
    with jax.enable_x64(True):
        sht = RealSHT(32, 64, 32, 32, "legendre-gauss")
        z = sht(era5_500hpa()["geopotential"].astype(np.float64))
        power = np.asarray(power_spectrum(z))
    assert _relative(z, reference["z_coeffs_cs"]) < 1e-5
    np.testing.assert_allclose(power, reference["z_power_per_degree"], rtol=1e-5)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(power * (1 + 3e-5), reference["z_power_per_degree"], rtol=1e-5)


def test_egm96_spectrum(golden, geoid):
    reference = golden("egm96_spectrum")
    assert geoid["geoid"].shape == (721, 1440)
    with jax.enable_x64(True):
        # lmax beyond 361 asks for the exact analysis, which what the field holds beyond degree 360 does not alias into.
        sht = RealSHT(721, 1440, 720, 361, "equiangular")
        field = geoid["geoid"].astype(np.float64)
        coefficients = np.asarray(sht(field))[:361]
        power = np.asarray(power_spectrum(coefficients))
        fit = np.asarray(InverseRealSHT(721, 1440, 361, 361, "equiangular")(coefficients))
    np.testing.assert_allclose(power, reference["power_per_degree"], rtol=1e-9)
    assert _relative(coefficients[:9, :9], reference["low_coeffs"]) < 1e-9
    assert np.sqrt(((field - fit) ** 2).mean()) == pytest.approx(0.0160, abs=5e-5)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(power * (1 + 3e-9), reference["power_per_degree"], rtol=1e-9)


def test_egm96_lies_as_the_conventions_say(geoid):
    grid, field = geoid.grid, geoid["geoid"]
    row, column = np.unravel_index(field.argmin(), field.shape)
    # The deepest hollow of the geoid is south of India, near (4.7 N, 78.8 E).
    assert np.rad2deg(grid.latitudes[row]) == pytest.approx(4.7, abs=1.0)
    assert np.rad2deg(grid.longitudes[column]) == pytest.approx(78.8, abs=1.0)
    assert np.ptp(field[0]) < 1e-6  # a pole is one point
    assert np.ptp(field[-1]) < 1e-6


def _gtx(path, values, south=-90.0, west=-180.0, step=0.25):
    path.write_bytes(struct.pack(">4d2i", south, west, step, step, *values.shape) + values.astype(">f4").tobytes())
    return path


def test_egm96_is_read_from_south_and_the_date_line(tmp_path, monkeypatch):
    rows, columns = np.meshgrid(np.linspace(-90, 90, 721), -180 + 0.25 * np.arange(1440), indexing="ij")
    file = _gtx(tmp_path / "egm96_15.gtx", rows * 1000 + columns)
    sample = egm96(file)
    assert sample["geoid"].dtype == np.float32
    assert sample["geoid"][0, 0] == 90000
    assert sample["geoid"][-1, 4] == -90000 + 1
    assert sample["geoid"][360, 720] == -180
    monkeypatch.setenv(EGM96_VARIABLE, str(tmp_path))  # a folder will do too
    assert egm96_file() == file
    monkeypatch.delenv(EGM96_VARIABLE)
    monkeypatch.setenv("PROJ_DATA", f"{tmp_path / 'none'}{os.pathsep}{tmp_path}")
    assert egm96_file() == file


def test_a_missing_egm96_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv(EGM96_VARIABLE, str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"egm96_15\.gtx .*apt-get install proj-data"):
        egm96()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"short", "has 5 bytes"),
        (struct.pack(">4d2i", -90, 0, 0.25, 0.25, 721, 1440), r"starts at \(-90\.0, 0\.0\)"),
        (struct.pack(">4d2i", -90, -180, 0.25, 0.25, 721, 1440), "and 40 bytes"),
    ],
)
def test_a_damaged_egm96_is_refused(tmp_path, content, match):
    file = tmp_path / "egm96_15.gtx"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=match):
        egm96(file)


def test_unknown_names_are_errors():
    with pytest.raises(ValueError, match="sample 'era6' is unknown; there are era5, egm96"):
        load_sample("era6")
    with pytest.raises(KeyError, match="no field 'w'; it has u, v, geopotential"):
        era5_500hpa()["w"]
    with pytest.raises(KeyError):
        era5_500hpa().stack(["u", "w"])
    assert set(SAMPLES) == {"era5", "egm96"}


def test_a_sample_becomes_a_dataset():
    dataset = era5_500hpa().to_xarray()
    assert dataset["u"].attrs["units"] == "m s-1"
    assert float(dataset["latitude"][0]) == pytest.approx(85.76, abs=0.01)
    assert float(dataset["longitude"][1]) == pytest.approx(5.625)
    assert "Copernicus" in dataset.attrs["source"]
