"""The demo from end to end, tiny, as the command runs it."""

import functools
import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from sfno_jax import demo
from sfno_jax.cli import main

TINY = {
    "trajectories": 2,
    "hours": 8,
    "samples": 2,
    "leads": (1, 2, 4),
    "long": 12,
    "fine": (48, 96),
    "jet": (16, 32, 2.0),
    "frames": 3,
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """What the demo printed and wrote."""
    out = tmp_path_factory.mktemp("demo") / "new"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "DemoSettings", functools.partial(demo.DemoSettings, **TINY))
        result = CliRunner().invoke(main, ["demo", "--seconds", "0.4", "--out", str(out)])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return out, result.stdout, json.loads((out / "result.json").read_text())


def _table(result, start):
    (table,) = [table for table in result["tables"] if table["title"].startswith(start)]
    return {row[0]: dict(zip(table["columns"][1:], row[1:], strict=True)) for row in table["rows"]}


def test_each_line_is_a_stage(outcome):
    _, printed, result = outcome
    lines = printed.strip().splitlines()
    for name in ("SFNO", "FNO"):
        for stage in ("0.28 s, one step ahead", "0.12 s, 4 steps ahead"):
            assert any(line.startswith(f"{name}: training {stage}") for line in lines)
    assert lines[-1] == result["summary"]
    assert max(map(len, lines)) < 200
    assert set(result) == {"title", "summary", "tables", "figures"}


def test_pictures_are_there(outcome):
    out, _, result = outcome
    names = {figure["file"] for figure in result["figures"]}
    assert names == {
        "helmholtz.png",
        "galewsky.png",
        "errors.png",
        "stability.png",
        "rollout.gif",
        "triptych.png",
        "spectrum.png",
        "finer.png",
    }
    assert all(figure["caption"] for figure in result["figures"])
    for name in names:
        with Image.open(out / name) as image:
            assert getattr(image, "n_frames", 1) == (3 if name.endswith("gif") else 1)
    assert any("Copernicus" in figure["caption"] for figure in result["figures"])


def test_tables_are_complete_and_honest(outcome):
    _, _, result = outcome
    networks = _table(result, "Networks")
    assert networks["SFNO"]["parameters"] < networks["FNO"]["parameters"]
    assert min(networks["SFNO"]["one-step iterations"], networks["FNO"]["multi-step iterations"]) > 0
    errors = _table(result, "Relative L2 error")
    assert set(errors) == {
        "SFNO, one-step training",
        "SFNO, 4-step tuned",
        "FNO, one-step training",
        "FNO, 4-step tuned",
        "persistence",
    }
    assert set(errors["persistence"]) == {"1 h", "2 h", "4 h"}
    finer = _table(result, "The same SFNO weights at 48 x 96")
    assert finer["32 x 64 (trained)"] == errors["SFNO, 4-step tuned"]
    # The same initial states on a finer grid: persistence errs as much.
    for lead, value in finer["persistence"].items():
        assert value == pytest.approx(errors["persistence"][lead], rel=0.02)
    bounded = _table(result, "Rollouts of 12 steps")
    assert len(bounded) == 4
    assert all(row["fewest steps"] <= row["median steps"] <= 12 for row in bounded.values())
    for row in bounded.values():
        if row["bounded to the end"] == "2 of 2":
            assert row["variance then / solver's"] > 0


def test_numbers_are_plain():
    assert demo._plain(np.float32(0.123456)) == 0.123
    assert demo._plain(np.int64(3)) == 3
    assert demo._plain(float("inf")) == "not finite"
