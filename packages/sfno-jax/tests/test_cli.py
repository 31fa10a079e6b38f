"""Every subcommand from end to end on small sizes, and bad input: one line on stderr and exit code 2."""

import json
import re
import subprocess
import sys

import jax
import jax.export
import numpy as np
import pytest
import xarray
from typer.testing import CliRunner

from sfno_jax import doctor as doctor_module
from sfno_jax.cli import main
from sfno_jax.data.gridded import open_gridded
from sfno_jax.grids import SphereGrid
from sfno_jax.models import from_pretrained
from sfno_jax.samples import era5_500hpa
from sfno_jax.spectral import power_spectrum
from sfno_jax.transforms import RealSHT

COMMANDS = (
    *("doctor", "demo", "bench"),
    *("sht", "spectrum", "helmholtz", "regrid", "plot"),
    "swe",
    *("train", "finetune", "rollout", "evaluate", "export"),
)

TINY = """
seed = 1
[data]
nlat = 16
nlon = 32
trajectories = 3
validation_trajectories = 1
steps = 6
solver_seconds = 900.0
[model]
embed_dim = 8
num_layers = 1
scale_factor = 1
residual_prediction = true
[trainer]
batch_size = 4
steps_per_dispatch = 4
[stabiliser]
conserve = ["geopotential"]
zero_mean = ["vorticity", "divergence"]
[[stages]]
steps = 8
learning_rate = 2e-3
"""


def invoke(*arguments, code=0):
    """Run a command in this process; its output must be clean and its exit code as expected."""
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(main, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def invoke_json(*arguments):
    return json.loads(invoke(*arguments, "--json").stdout)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A training run, tuned, exported: folders by name."""
    root = tmp_path_factory.mktemp("runs")
    (root / "tiny.toml").write_text(TINY)
    invoke("train", root / "tiny.toml", "--out", root / "run", "--cache", root / "cache")
    return root


def test_help_lists_every_command_with_an_example():
    text = invoke("--help").stdout
    for command in COMMANDS:
        assert re.search(rf"\b{command}\b", text)
        assert f"Example: sfno-jax {command}" in invoke(command, "--help").stdout


def test_starting_is_light():
    code = (
        "import sys, sfno_jax.cli\n"
        "heavy = {'matplotlib', 'xarray', 'flax', 'optax', 'jax', 'scipy', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_doctor(monkeypatch):
    facts = invoke_json("doctor")
    assert all(check["passed"] for check in facts["checks"])
    assert facts["backend"] in ("native", "einsum")
    wrong = [doctor_module.Check("sum", 1.0, 1e-6, 0.1)]
    monkeypatch.setattr(doctor_module, "self_check", lambda: wrong)
    assert "WRONG" in invoke("doctor", code=1).stdout


def test_bench():
    rows = invoke_json("bench", "--nlat", 16, "--batch", 2)["rows"]
    assert [(row["grid"], row["batch"]) for row in rows] == [("16x32", 1), ("16x32", 2)]
    assert all(row["forward_ms"] > 0 for row in rows)
    assert "uv run bench sfno-jax" in invoke("bench", "--nlat", 16).stdout


def test_sht(tmp_path):
    result = invoke_json("sht", "era5", "-v", "u", "-v", "geopotential", "--lmax", 21, "--out", "here")
    assert (result["lmax"], set(result["variables"])) == (21, {"u", "geopotential"})
    sample = era5_500hpa()
    with np.load(tmp_path / "here" / "coefficients.npz", allow_pickle=False) as file:
        expected = RealSHT(32, 64, 21, grid="legendre-gauss")(sample["u"])
        np.testing.assert_allclose(file["u"], expected, atol=1e-5)
    weights = sample.grid.area_weights / (4 * np.pi)
    rms = np.sqrt((weights * sample["u"] ** 2).sum())
    assert result["variables"]["u"]["rms"] == pytest.approx(rms, rel=1e-5)
    assert 0 < result["variables"]["u"]["residual_rms"] < rms
    assert all((tmp_path / file).is_file() for file in result["files"])
    assert "Copernicus" in result["attribution"]


def test_spectrum(tmp_path):
    result = invoke_json("spectrum", "era5", "--variable", "geopotential")
    rows = np.loadtxt(tmp_path / "out" / "spectrum" / "spectrum.csv", delimiter=",", skiprows=1)
    expected = power_spectrum(RealSHT(32, 64, 32, grid="legendre-gauss")(era5_500hpa()["geopotential"]))
    np.testing.assert_allclose(rows[:, 1], expected, rtol=1e-3)
    assert result["power"]["geopotential"] == rows[:, 1].tolist()
    assert "geopotential" in invoke("spectrum", "era5").stdout


def _upside_down(path):
    """The sample's wind as many files have it: from the south, from the date line, with a time axis."""
    dataset = era5_500hpa().to_xarray()
    turned = dataset.roll(longitude=32, roll_coords=True).isel(latitude=slice(None, None, -1))
    longitude = (turned["longitude"] + 180) % 360 - 180
    turned = turned.assign_coords(longitude=longitude.assign_attrs(units="degrees_east"))
    still = turned * 0
    xarray.concat([still, turned], dim="time").assign_coords(time=[0, 6]).to_netcdf(path, engine="h5netcdf")
    return path


def test_helmholtz_of_a_sample_and_of_a_file(tmp_path):
    sample = invoke_json("helmholtz", "--out", "a")
    assert sample["rotational_energy"] > 50 * sample["divergent_energy"]
    assert sample["kinetic_energy"] == pytest.approx(118.7, abs=0.5)
    file = _upside_down(tmp_path / "wind.nc")
    result = invoke("helmholtz", file, "--time", -1, "--out", "b", "--json")
    assert "warning" in result.stderr  # says what was turned
    again = json.loads(result.stdout)
    for name in ("kinetic_energy", "rotational_energy", "vorticity_max", "divergence_min"):
        assert again[name] == pytest.approx(sample[name], rel=1e-4)
    with xarray.open_dataset(tmp_path / "a" / "helmholtz.nc", engine="h5netcdf") as one:
        assert one["vorticity"].attrs["units"] == "s-1"
        assert float(one["vorticity"].max()) == pytest.approx(sample["vorticity_max"])
        assert float(one["latitude"][0]) > 80
    assert (tmp_path / "b" / "helmholtz.png").stat().st_size > 10_000


def test_without_the_extra_pictures_are_still_drawn(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "xarray" else True)
    result = invoke("helmholtz", "--json")
    assert "helmholtz.nc is not written: it needs xarray, `pip install 'sfno-jax[io]'`" in result.stderr
    assert json.loads(result.stdout)["files"] == ["out/helmholtz/helmholtz.png"]
    error = invoke("regrid", "era5", "a.nc", "--nlat", 16, "--nlon", 32, code=1).stderr
    assert "pip install 'sfno-jax[io]'" in error


@pytest.mark.parametrize("target", ["fine.nc", "fine.zarr"])
def test_regrid(tmp_path, target):
    result = invoke_json("regrid", "era5", target, "--nlat", 37, "--nlon", 72, "--grid", "equiangular", "-v", "u")
    assert result["to"] == "37x72 equiangular"
    assert result["area_means"]["u"]["after"] == pytest.approx(result["area_means"]["u"]["before"], rel=1e-5)
    data = open_gridded(tmp_path / target)
    assert data.grid == SphereGrid(37, 72, "equiangular")
    assert data.channels == ("u",)
    back = invoke_json("sht", target, "--lmax", 20, "--out", "s")
    assert back["grid"] == "37x72 equiangular"


def test_plot(tmp_path):
    dataset = era5_500hpa().to_xarray()[["u"]]
    dataset["u"][10, 20] = np.nan
    dataset.to_netcdf(tmp_path / "holes.nc", engine="h5netcdf")
    options = ("--projection", "plate-carree", "--center", "0,90", "--vmin", -40, "--vmax", 40, "--cmap", "RdBu_r")
    result = invoke_json("plot", "holes.nc", *options)
    assert result["range"]["u"][1] == pytest.approx(float(dataset["u"].max()))
    assert (tmp_path / "out" / "plot" / "u.png").stat().st_size > 5_000
    invoke("plot", "era5", "-v", "v", "--both", "--center", "-40,10")


@pytest.mark.parametrize("initial", ["galewsky", "random"])
def test_swe(tmp_path, initial):
    options = ("--nlat", 16, "--nlon", 32, "--hours", 6, "--every", 2, "--initial", initial)
    result = invoke_json("swe", *options)
    assert abs(result["mass_drift"]) < 1e-6
    assert result["hours"] == pytest.approx(6)
    table = json.loads((tmp_path / "out" / "swe" / "diagnostics.json").read_text())
    assert [row["hours"] for row in table] == pytest.approx([0, 2, 4, 6])
    with xarray.open_dataset(tmp_path / "out" / "swe" / "swe.nc", engine="h5netcdf") as states:
        assert states["vorticity"].shape == (4, 16, 32)
        assert float(states["vorticity"][-1].max()) == pytest.approx(result["vorticity_max"], rel=1e-5)
    assert (tmp_path / "out" / "swe" / "swe.gif").is_file()


def test_swe_that_blows_up_fails_with_a_hint():
    arguments = ("--nlat", 16, "--nlon", 32, "--hours", 400, "--every", 100, "--initial", "random", "--mach", 60)
    error = invoke("swe", *arguments, code=1).stderr
    assert re.search(r"InstabilityError: the state is not finite at step \d+ .* try dt=", error)


def test_train_resumes_and_refuses_to_overwrite(run):
    assert (run / "run" / "checkpoints").is_dir()
    assert "go on with --resume" in invoke("train", run / "tiny.toml", "--out", run / "run", code=2).stderr
    result = invoke_json("train", run / "tiny.toml", "--out", run / "run", "--cache", run / "cache", "--resume")
    assert result["steps"] == 8
    assert np.isfinite(result["validation_loss_1"])
    assert list((run / "cache").glob("shallow-water-*"))


def test_finetune_starts_from_the_weights(run, tmp_path):
    options = ("--n-future", 2, "--steps", 4, "--learning-rate", 1e-9, "--set", "trainer.steps_per_dispatch=2")
    result = invoke_json("finetune", run / "run", *options, "--cache", run / "cache", "--out", "tuned")
    before = invoke_json("train", run / "tiny.toml", "--out", run / "run", "--cache", run / "cache", "--resume")
    # So small a learning rate changes nothing: the weights are those of the run.
    assert result["validation_loss_1"] == pytest.approx(before["validation_loss_1"], rel=1e-3)
    settings = json.loads((tmp_path / "tuned" / "config.json").read_text())
    assert settings["trainer"]["steps_per_dispatch"] == 2
    assert [stage["n_future"] for stage in settings["stages"]] == [2]


def test_rollout_from_a_random_state_and_from_a_file(run, tmp_path):
    result = invoke_json("rollout", run / "run", "--steps", 3, "--out", "r")
    assert result["finite_steps"] == 3
    with xarray.open_dataset(tmp_path / "r" / "rollout.nc", engine="h5netcdf") as states:
        assert states["geopotential"].shape == (4, 16, 32)
        states[["geopotential", "vorticity", "divergence"]].isel(time=[0]).to_netcdf("start.nc", engine="h5netcdf")
        expected = states["vorticity"].values
    assert {"rollout.gif", "last.png"} <= {file.name for file in (tmp_path / "r").iterdir()}
    invoke("rollout", run / "run", "--steps", 3, "--input", "start.nc", "--out", "again", "--channel", "geopotential")
    with xarray.open_dataset(tmp_path / "again" / "rollout.nc", engine="h5netcdf") as states:
        np.testing.assert_allclose(states["vorticity"], expected, atol=1e-4 * np.abs(expected).max())
    finer = invoke_json("rollout", run / "run", "--steps", 2, "--nlat", 24, "--nlon", 48, "--out", "f")
    assert finer["grid"] == "24x48 legendre-gauss"


def test_evaluate(run, tmp_path):
    options = ("--leads", "1,3", "--samples", 2, "--long", 5)
    result = invoke_json("evaluate", run / "run", *options)
    assert [row["lead"] for row in result["leads"]] == [1, 3]
    assert all(np.isfinite(row["l2"]) and row["persistence_l2"] > 0 for row in result["leads"])
    assert len(result["stability"]["bounded_for"]) == 2
    assert (tmp_path / "out" / "evaluate" / "errors.png").is_file()
    assert "persistence" in invoke("evaluate", run / "run", *options).stdout


def test_export(run, tmp_path):
    invoke("export", run / "run", "model", "--stablehlo")
    model = from_pretrained(tmp_path / "model")
    assert model.statistics.channels == ("geopotential", "vorticity", "divergence")
    one = invoke_json("rollout", "model", "--steps", 2, "--out", "a")
    other = invoke_json("rollout", run / "run", "--steps", 2, "--out", "b")
    assert one["largest_std_at_end"] == pytest.approx(other["largest_std_at_end"], rel=1e-5)
    # The portable program is the network and its constraint, without this package.
    step = jax.export.deserialize(bytearray((tmp_path / "model" / "step.stablehlo").read_bytes()))
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 32)).astype(np.float32)
    y = np.asarray(step.call(x))
    weights = SphereGrid(16, 32).area_weights / (4 * np.pi)
    assert (weights * (y - x)[0, 0]).sum() == pytest.approx(0, abs=1e-5)  # mass is conserved
    difference = y - np.asarray(model(x))
    assert np.abs(difference - difference.mean((2, 3), keepdims=True)).max() < 1e-4


def _nan_file():
    dataset = era5_500hpa().to_xarray()[["u", "v"]]
    dataset["u"][3, 4] = np.nan
    dataset.to_netcdf("nan.nc", engine="h5netcdf")
    dataset.isel(latitude=slice(0, 31)).to_netcdf("cut.nc", engine="h5netcdf")
    dataset.isel(longitude=0).to_netcdf("line.nc", engine="h5netcdf")
    with open("text.nc", "w") as file:
        file.write("no netCDF")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ("sht nowhere.nc", "no input 'nowhere.nc': not a file, and not one of the samples era5, egm96"),
        ("sht text.nc", "text.nc cannot be read as netCDF or Zarr"),
        ("sht line.nc", "longitude has 0 dimensions"),
        ("sht cut.nc", "31"),
        ("sht nan.nc", r"u has 1 missing or infinite values, the first at \(row, column\) = \(3, 4\)"),
        ("sht era5 -v w", "era5 has no variable 'w'; it has u, v, geopotential"),
        ("sht nan.nc -v w", "nan.nc has no variable 'w'; it has u, v"),
        ("sht nan.nc -v v --time 3", r"--time 3: nan\.nc has 1 time"),
        ("sht era5 --lmax 33", "lmax=33 is beyond .* the largest is lmax=32"),
        ("sht era5 --lmax 0", "lmax=0"),
        ("sht", "Missing argument 'INPUT'"),
        ("sht era5 --lmix 3", "No such option: --lmix"),
        ("spectrum nowhere.nc", "no input 'nowhere.nc'"),
        ("helmholtz era5 --u wind", "era5 has no variable 'wind'"),
        ("helmholtz era5 --radius -1", "radius=-1"),
        ("regrid era5 a.nc --nlat 8", "Missing option '--nlon'"),
        ("regrid era5 a.nc --nlat 8 --nlon 15", "nlon=15 is odd"),
        ("regrid era5 a.nc --nlat 8 --nlon 16 --grid gauss", "grid='gauss' is unknown"),
        ("regrid era5 a.nc --nlat 8 --nlon 16 --lmax 12", "lmax=12"),
        ("regrid era5 a.txt --nlat 8 --nlon 16", "expected a name ending in .nc or .zarr"),
        ("plot era5 --projection mercator", "projection='mercator' is unknown"),
        ("plot era5 --center north", "--center 'north'; expected LATITUDE,LONGITUDE"),
        ("plot era5 --cmap nice", "--cmap 'nice' is not one of matplotlib's"),
        ("plot era5 --vmin 2 --vmax 1", "vmin=2.0 and vmax=1.0"),
        ("swe --initial jet", "--initial='jet' is unknown"),
        ("swe --scheme leapfrog", "scheme='leapfrog' is unknown"),
        ("swe --hours 0", "--hours 0"),
        ("swe --dt 5000", "dt=5000 s is unstable"),
        ("bench --batch 0", "--batch 0"),
        ("train no-such-preset", "no configuration 'no-such-preset'"),
        ("train swe-small --set trainer.batchsize=3", "unknown key trainer.batchsize .*did you mean 'batch_size'"),
        ("train swe-small --set trainer.batch_size=many", "trainer.batch_size must be an integer"),
        ("train swe-small --set model.scale_factor=40", "scale_factor=40"),
        ("finetune nowhere", "no training run in nowhere"),
        ("rollout nowhere", "no saved model at nowhere"),
        ("export nowhere target", "no training run in nowhere"),
        ("rollout RUN --steps 0", "--steps 0"),
        ("rollout RUN --channel rain", "--channel 'rain' is not one of the model's: geopotential"),
        ("rollout RUN --nlat 8", "--nlat and --nlon belong together"),
        ("rollout RUN --input era5", "era5 has no variable 'vorticity', 'divergence'"),
        ("rollout RUN --seed 1", "--seed 1 is that of the training data"),
        ("evaluate RUN --leads one", "--leads 'one'; expected numbers of steps"),
        ("evaluate RUN --leads 3,1", "leads must increase"),
        ("evaluate RUN --samples 0", "--samples 0"),
        ("finetune RUN --steps 3 --seconds 3", "exactly one of stages.steps and stages.seconds"),
    ],
)
def test_bad_input(arguments, match, run):
    _nan_file()
    result = invoke(*(run / "run" if word == "RUN" else word for word in arguments.split()), code=2)
    assert re.search(match, result.stderr.replace("\n", " ")), result.stderr
    assert "Traceback" not in result.stderr


def test_a_traceback_can_be_had(monkeypatch):
    monkeypatch.setenv("SFNO_JAX_TRACEBACK", "1")
    with pytest.raises(ValueError, match="lmax=33"):
        invoke("sht", "era5", "--lmax", 33)
