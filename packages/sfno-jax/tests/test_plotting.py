"""Maps show the sphere as it is: interpolation, projection, both hemispheres, and files that can be read."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from sfno_jax.grids import GRIDS, SphereGrid
from sfno_jax.plotting import (
    Map,
    animate,
    curve_figure,
    draw_map,
    interpolate,
    inverse_orthographic,
    map_figure,
    panel_figure,
    save_figure,
    spectrum_figure,
    triptych,
)
from sfno_jax.plotting.projection import orthographic


def _smooth(latitude, longitude):
    """A smooth scalar on the sphere, with no symmetry that a flipped or turned map would share."""
    x, y, z = np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)
    return z + 0.5 * x * z + 0.3 * y - 0.2 * x**2 * y


def _field(grid):
    return _smooth(grid.latitudes[:, None], grid.longitudes)


@pytest.mark.parametrize("kind", GRIDS)
def test_interpolation_is_close_everywhere(kind):
    grid = SphereGrid(33 if kind != "legendre-gauss" else 32, 64, kind)
    rng = np.random.default_rng(0)
    latitude = np.concatenate([np.arcsin(rng.uniform(-1, 1, 500)), [np.pi / 2, -np.pi / 2, 1.55, -1.55]])
    longitude = rng.uniform(-7, 14, len(latitude))
    error = np.abs(interpolate(_field(grid), grid, latitude, longitude) - _smooth(latitude, longitude)).max()
    # Trapezoidal rows are far apart near the poles.
    assert error < (0.05 if kind == "trapezoidal" else 3e-3)


def test_interpolation_meets_the_grid_points():
    grid = SphereGrid(16, 32)
    field = np.random.default_rng(0).standard_normal(grid.shape)
    at = interpolate(field, grid, grid.latitudes[:, None], grid.longitudes)
    np.testing.assert_allclose(at, field, atol=1e-6)
    nearest = interpolate(field, grid, grid.latitudes[:, None] + 0.01, grid.longitudes - 0.05, nearest=True)
    np.testing.assert_array_equal(nearest, field)
    pole = interpolate(field, grid, np.pi / 2, grid.longitudes, nearest=True)
    np.testing.assert_array_equal(pole, field[0])


def test_missing_values_stay_where_they_are():
    grid = SphereGrid(16, 32)
    field = _field(grid)
    field[8, 16] = np.nan
    near = interpolate(field, grid, grid.latitudes[8], grid.longitudes[16] + 0.01)
    far = interpolate(field, grid, grid.latitudes[8], grid.longitudes[19])
    assert np.isnan(near)
    assert far == pytest.approx(field[8, 19])


@pytest.mark.parametrize("center", [(0.0, 0.0), (35.0, 20.0), (-60.0, 250.0), (90.0, 0.0), (-90.0, 10.0)])
def test_orthographic_projection_and_its_inverse(center):
    rng = np.random.default_rng(0)
    radius, angle = np.sqrt(rng.uniform(0, 0.99, 200)), rng.uniform(0, 2 * np.pi, 200)
    x, y = radius * np.cos(angle), radius * np.sin(angle)
    back = orthographic(*inverse_orthographic(x, y, center), center)
    np.testing.assert_allclose(back, (x, y), atol=1e-9)
    middle = inverse_orthographic(0.0, 0.0, center)
    assert np.rad2deg(middle[0]) == pytest.approx(center[0])
    # Up is north: a point a little above the middle has a larger latitude, unless the middle is the pole itself.
    if abs(center[0]) < 90:
        assert inverse_orthographic(0.0, 0.01, center)[0] > middle[0]
        assert np.sin(inverse_orthographic(0.01, 0.0, center)[1] - middle[1]) > 0  # right is east
    assert np.isnan(inverse_orthographic(0.8, 0.8, center)[0])


@pytest.mark.parametrize(("center", "expected"), [((90.0, 0.0), 1.0), ((-90.0, 0.0), -1.0), ((0.0, 90.0), 0.0)])
def test_each_hemisphere_shows_its_own_side(center, expected):
    grid = SphereGrid(64, 128)
    north = np.sin(grid.latitudes)[:, None] * np.ones(grid.nlon)
    picture = Map(center=center).raster(north, grid, 101)
    assert picture[50, 50] == pytest.approx(expected, abs=0.01)
    assert picture[10, 50] == pytest.approx(expected if expected else 0.8, abs=0.45)
    assert np.isfinite(picture).all()  # beyond the limb lies the limb's colour, cut away by the disc


def test_plate_carree_runs_from_the_north_west():
    grid = SphereGrid(32, 64)
    picture = Map("plate-carree", center=(0.0, 90.0)).raster(_field(grid), grid, 360)
    latitude = np.pi / 2 - (np.arange(180) + 0.5) * np.pi / 180
    longitude = np.deg2rad(-90 + np.arange(360) + 0.5)
    np.testing.assert_allclose(picture, _smooth(latitude[:, None], longitude), atol=3e-3)


def test_colours_follow_the_field():
    assert Map().colours([-1.0, 2.0]) == ("RdBu_r", -2.0, 2.0)
    assert Map().colours([1.0, 2.0]) == ("viridis", 1.0, 2.0)
    assert Map(cmap="magma", vmin=0.0).colours([1.0, np.nan, 2.0]) == ("magma", 0.0, 2.0)
    name, low, high = Map().colours([3.0, 3.0])
    assert (name, low < 3.0 < high) == ("viridis", True)
    assert Map().colours([np.nan])[1:] == (0.0, 1.0)


@pytest.mark.parametrize("projection", ["orthographic", "plate-carree"])
def test_figures_are_written(tmp_path, projection):
    grid = SphereGrid(16, 32)
    field, style = _field(grid), Map(projection)
    figures = {
        "map.png": map_figure(field, grid, style, title="t", units="m", both_hemispheres=True, note="n"),
        "three.png": triptych(field, field * 0.9, grid, style, title="t", units="m"),
        "panels.png": panel_figure({("a", "m"): field, ("b", "s"): -field, ("c", "1"): field}, grid, style, title="t"),
    }
    for name, figure in figures.items():
        file = save_figure(figure, tmp_path / "new" / name, dpi=50)
        with Image.open(file) as image:
            assert min(image.size) > 100
            assert len(np.unique(np.asarray(image.convert("L")))) > 50


def test_the_triptych_states_the_error():
    grid = SphereGrid(16, 32)
    field = _field(grid)
    figure = triptych(field, field + 0.25, grid, units="m")
    assert figure.axes[2].get_title() == "error (rms 0.25 m)"
    images = [axes.get_images()[0] for axes in figure.axes[:3]]
    assert images[0].get_clim() == images[1].get_clim()
    assert images[2].get_clim() == pytest.approx((-0.25, 0.25))


def test_the_far_side_has_no_graticule():
    grid = SphereGrid(16, 32)
    figure = map_figure(_field(grid), grid, Map(center=(0.0, 0.0)))
    lines = figure.axes[0].get_lines()
    assert lines
    for line in lines:
        x, y = line.get_data()
        assert np.nanmax(np.hypot(x, y), initial=0.0) <= 1 + 1e-9


def test_curves_are_written(tmp_path):
    power = {"a": np.arange(1.0, 40) ** -3, "b": np.r_[0.0, np.ones(30)]}
    figure = spectrum_figure(power, truncation=20, slopes={"$l^{-3}$": -3.0}, title="t", units="m2")
    assert [line.get_xdata()[0] for line in figure.axes[0].get_lines()][-1] == 19
    save_figure(figure, tmp_path / "spectrum.svg")
    rng = np.random.default_rng(0)
    samples = rng.uniform(1, 2, (10, 3))
    samples[7:, 1] = np.inf
    figure = curve_figure(np.arange(10), {"a": samples, "b": np.ones(10)}, limit=1.0, limit_label="x", title="t")
    median = figure.axes[0].get_lines()[0].get_ydata()
    np.testing.assert_allclose(median[:7], np.median(samples[:7], 1))
    assert np.isnan(median[7:]).all()
    assert save_figure(figure, tmp_path / "curve.pdf").stat().st_size > 1000


def test_animation(tmp_path):
    grid = SphereGrid(16, 32)
    frames = np.stack([np.roll(_field(grid), i, 1) for i in range(4)])
    captions = [f"{i} h" for i in range(4)]
    file = animate({"a": frames, "b": -frames}, grid, tmp_path / "x.gif", captions=captions, title="t", pixels=90)
    with Image.open(file) as image:
        assert image.n_frames == 4
        first = np.asarray(image.convert("RGB")).astype(int)
        image.seek(2)
        second = np.asarray(image.convert("RGB")).astype(int)
    assert np.abs(first - second).mean() > 1.0
    blue, red = (first[..., 2] - first[..., 0] > 60).sum(), (first[..., 0] - first[..., 2] > 60).sum()
    assert min(blue, red) > 100  # both ends of the colours survive the palette


def _grid():
    return SphereGrid(16, 32)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Map("mollweide"), "projection='mollweide' is unknown"),
        (lambda: Map(center=(91.0, 0.0)), r"center=\(91\.0, 0\.0\)"),
        (lambda: Map(vmin=1.0, vmax=0.0), "vmin=1.0 and vmax=0.0"),
        (lambda: Map(graticule=-1.0), "graticule=-1.0"),
        (lambda: map_figure(np.zeros((32, 16)), _grid()), r"shape \(32, 16\); expected .* \(16, 32\)"),
        (lambda: triptych(np.zeros((16, 32)), np.zeros((16, 30)), _grid()), r"shape \(16, 30\)"),
        (lambda: panel_figure({}, _grid()), "at least one field"),
        (lambda: spectrum_figure({}), "at least one spectrum"),
        (lambda: spectrum_figure({"a": np.ones((2, 3))}), r"'a' has shape \(2, 3\)"),
        (lambda: curve_figure([1, 2], {"a": [1, 2, 3]}), r"'a' has shape \(3,\)"),
        (lambda: animate({"a": np.zeros((2, 16, 32)), "b": np.zeros((3, 16, 32))}, _grid(), "x"), r"\[2, 3\] frames"),
        (lambda: animate({"a": np.zeros((2, 16, 32))}, _grid(), "x.gif", captions=["one"]), "1 captions for 2 frames"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_an_unknown_format_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="xyz"):
        save_figure(map_figure(_field(_grid()), _grid()), tmp_path / "a.xyz")
    assert not list(tmp_path.iterdir())


def test_drawing_needs_no_display_and_touches_no_global_state():
    code = (
        "import sys, numpy as np\n"
        "from sfno_jax.grids import SphereGrid\n"
        "from sfno_jax.plotting import map_figure\n"
        "map_figure(np.zeros((8, 16)), SphereGrid(8, 16)).savefig('/dev/null', format='png')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_draw_map_fits_into_any_axes():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    image = draw_map(axes, _field(_grid()), _grid(), Map(nearest=True), title="t")
    assert axes.get_title() == "t"
    assert image.get_array().shape == (640, 640)
