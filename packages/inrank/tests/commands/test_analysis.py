import json

import pytest
import torch
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner

from inrank.commands.analysis import null_model, plan, spectrum, theory

main = typer.Typer(pretty_exceptions_enable=False)
for command in (theory, null_model, plan, spectrum):
    main.command()(command)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _run(*arguments, code=0):
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result


def test_theory(tmp_path):
    values = json.loads(_run("theory", "--check", "--gain", 1, "--gain", 0.3, "--out", tmp_path, "--json").stdout)
    assert values["largest_difference"] < 1e-6
    assert [row["gain"] for row in values["gains"]] == [0.3, 1.0]
    assert [row["is_low_rank"] for row in values["gains"]] == [True, False]
    assert "At gain 1 D is not of low rank" in values["statement"]
    assert 10_000 < (tmp_path / "theory.png").stat().st_size < 200_000


def test_theory_check_can_fail(tmp_path, monkeypatch):
    monkeypatch.setattr("inrank.commands.analysis._THEORY_TOLERANCE", 1e-14)
    result = _run("theory", "--check", "--gain", 1, "--out", tmp_path, code=1)
    assert "theory and simulation differ by" in result.stderr
    assert "15 directions" in result.stdout
    assert "0.508" in result.stdout


def test_null_model():
    values = json.loads(_run("null-model", "gpt2-small", "400x300", "--seeds", 1, "--json").stdout)
    small, other = values["shapes"]
    assert abs(small["difference"]) < 0.01
    assert small["published"] == 254
    assert other["published"] is None
    assert 2 < other["null_rank"] < 50
    assert "says nothing about the task" in _run("null-model", "small", "--seeds", 1).stdout
    changed = json.loads(_run("null-model", "small", "--seeds", 1, "--threshold", 0.8, "--json").stdout)
    assert changed["shapes"][0]["null_rank"] == pytest.approx(152, abs=3)
    assert changed["shapes"][0]["published"] is None


def test_plan_of_gpt():
    values = json.loads(_run("plan", "gpt2-medium", "--rank", 287, "--json").stdout)
    low = values["variants"]["InRank-Efficient"]
    assert values["variants"]["dense"]["trained"] == pytest.approx(354.8e6, rel=1e-3)
    assert low["trained"] == pytest.approx(224.0e6, rel=1e-3)
    assert low["parameter_ratio"] == pytest.approx(1 - 0.369, abs=1e-3)
    assert low["weight_flop_ratio"] == pytest.approx(0.63, abs=5e-3)
    assert values["null_rank"] == pytest.approx(287, abs=3)
    out = _run("plan", "gpt2-medium", "--rank", 287, "--attention").stdout
    assert "InRank (W_0 kept)" in out
    assert "without training" in out


def test_plan_of_a_layer():
    result = _run("plan", "64x64", "--rank", 40, "--optimizer", "sgd", "--json")
    values = json.loads(result.stdout)
    assert (values["break_even_rank"], values["null_rank"]) == (32, None)
    assert "rank 40 is above the break-even rank 32" in result.stderr
    assert values["variants"]["InRank-Efficient"]["state_bytes"] == 2 * 4 * 40 * 128


def test_spectrum_between_checkpoints(tmp_path):
    generator = torch.Generator().manual_seed(0)
    before = {"fc.weight": torch.randn(24, 16, generator=generator), "fc.bias": torch.zeros(24)}
    rank_two = torch.randn(24, 2, generator=generator) @ torch.randn(2, 16, generator=generator)
    save_file(before, tmp_path / "a.safetensors")
    save_file({**before, "fc.weight": before["fc.weight"] + rank_two}, tmp_path / "b.safetensors")
    paths = (tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    result = _run("spectrum", *paths, "--threshold", 0.999, "--out", tmp_path / "out", "--json")
    values = json.loads(result.stdout)
    assert values["layers"][0]["update_ranks"]["energy"] == 2
    assert values["layers"][0]["weight_ranks"]["energy"] > 10
    assert "skipped fc.bias: it has 1 dimensions" in result.stderr
    assert json.loads((tmp_path / "out" / "spectra.json").read_text())["layers"] == values["layers"]
    assert (tmp_path / "out" / "update-ranks.png").stat().st_size < 200_000
    assert "D energy" in _run("spectrum", *paths, "--include", "fc", "--top", 3, "--out", tmp_path).stdout


def test_spectrum_of_digits(tmp_path):
    options = ("--network", "mlp", "--optimizer", "sgd", "--steps", 60, "--out", tmp_path)
    values = json.loads(_run("spectrum", *options, "--json").stdout)
    (run,) = values["runs"]
    assert run["layers"][0]["update"] < run["layers"][0]["weight"]
    assert (tmp_path / "spectrum-mlp-sgd.png").stat().st_size < 200_000
    assert json.loads((tmp_path / "spectra.json").read_text())["runs"] == values["runs"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("theory", "--gain", "0"), "--gain is 0.0; a gain must be positive"),
        (("spectrum", "--threshold", "0.5"), "--threshold are for two checkpoints"),
        (("spectrum", "--include", "fc"), "--include, --top and --threshold are for two checkpoints"),
        (("null-model", "tiny"), "shape 'tiny' is not known"),
        (("null-model", "30x40"), "no room for rank 2 + buffer 100"),
        (("null-model", "--threshold", "2"), "threshold is 2.0"),
        (("null-model", "--seeds", "0"), "Invalid value"),
        (("plan", "gpt3", "--rank", "2"), "no GPT-2 shape 'gpt3'"),
        (("plan", "gpt2-small"), "Missing option"),
        (("plan", "4x4", "--rank", "9"), "rank is 9"),
        (("plan", "4x4", "--rank", "1", "--optimizer", "lion"), "no optimizer 'lion'"),
        (("spectrum", "a.safetensors"), "1 checkpoint was given; expected two"),
        (("spectrum", "a.safetensors", "b.safetensors"), "no file"),
        (("spectrum", "--network", "rnn"), "no network 'rnn'"),
        (("spectrum", "--optimizer", "lion"), "no optimizer 'lion'"),
        (("spectrum", "--digits", "none.npz"), "none.npz"),
    ],
)
def test_bad_input_exits_2(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in _run(*arguments, code=2).stderr
