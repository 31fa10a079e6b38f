"""The comparison: equal budgets, matched ranks, null ranks, files."""

import json
import pickle
import statistics
from concurrent.futures import ThreadPoolExecutor

import pytest

from inrank.language.comparison import compare
from inrank.language.presets import override

NAMES = ["full rank", "InRank-Efficient", "fixed rank", "LoRA from scratch"]


@pytest.fixture(scope="module")
def config(small):
    return small("trainer.steps=9", "method.layers=mlp")


@pytest.fixture(scope="module")
def result(config):
    return compare(config, NAMES, seeds=(1, 2))


def test_table_has_a_row_for_each_variant(result):
    table = result.table()
    assert [row[0] for row in table["rows"]] == NAMES
    rows = {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["rows"]}
    assert all(row["steps"] == 9 for row in rows.values())
    assert rows["full rank"]["against full rank"] == "+0.0 %"
    assert rows["InRank-Efficient"]["null rank"] == 2
    assert rows["fixed rank"]["null rank"] is None
    assert rows["full rank"]["mean active"] is None
    assert rows["InRank-Efficient"]["mean rank"] < rows["InRank-Efficient"]["mean active"]
    assert rows["fixed rank"]["parameters"] < rows["full rank"]["parameters"] < rows["LoRA from scratch"]["parameters"]
    assert 0 < rows["fixed rank"]["states [MB]"] < rows["full rank"]["states [MB]"] < rows["full rank"]["peak [MB]"]
    assert rows["fixed rank"]["GFLOP / step"] < rows["full rank"]["GFLOP / step"]
    mean = statistics.fmean(o.loss for o in result.outcomes if o.variant == "full rank")
    assert rows["full rank"]["validation loss"] == pytest.approx(mean, abs=1e-4)


def test_sizes_are_matched_for_each_seed(result):
    for seed in (1, 2):
        of = {o.variant: o for o in result.outcomes if o.seed == seed}
        grown = of["InRank-Efficient"]
        assert grown.mean_rank < grown.mean_active
        assert of["fixed rank"].mean_rank == of["fixed rank"].mean_active == round(grown.mean_active)
        assert of["LoRA from scratch"].mean_rank == of["fixed rank"].mean_rank


def test_files(result, tmp_path):
    files = result.write(tmp_path)
    assert all(file.stat().st_size for file in files)
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["tables"][0]["rows"] == result.table()["rows"]
    assert all((tmp_path / figure["file"]).stat().st_size < 200_000 for figure in written["figures"])
    assert "InRank-Efficient: validation loss" in written["summary"]
    assert (tmp_path / "comparison-steps.md").read_text().count("\n| ") == 5
    assert len(json.loads((tmp_path / "runs-steps.json").read_text())) == 8


def test_equal_flops_give_low_rank_more_steps(config):
    result = compare(config, ["full rank", "fixed rank"], seeds=(1,), budget="flops")
    full, fixed = result.outcomes
    assert full.steps == 9 < fixed.steps
    assert fixed.flops == pytest.approx(full.flops, rel=0.12)


def test_jobs_give_the_same(config, monkeypatch):
    # what a worker is sent survives the way; fresh interpreters would take longer than all other tests here
    assert pickle.loads(pickle.dumps(config)) == config
    one = compare(config, ["full rank", "InRank-Efficient"], seeds=(1,))
    monkeypatch.setattr(
        "inrank.language.comparison.ProcessPoolExecutor", lambda jobs, mp_context: ThreadPoolExecutor(1)
    )
    two = compare(config, ["full rank", "InRank-Efficient"], seeds=(1,), jobs=2)
    assert [o.loss for o in one.outcomes] == [o.loss for o in two.outcomes]


def test_official_variant_is_official(small):
    from inrank.language.comparison import VARIANTS

    settings = override(small(), VARIANTS["InRank-Efficient, official"]).inrank
    assert (settings.strict, settings.resolved_init, settings.resolved_spectrum) == (True, "official", "product")


def test_bad_input(config):
    with pytest.raises(ValueError, match="no variant 'InRank'; known: full rank"):
        compare(config, ["InRank"])
    with pytest.raises(ValueError, match="budget must be"):
        compare(config, ["full rank"], budget="time")
    with pytest.raises(ValueError, match="needs variants, seeds and jobs, got 1, 0 and 1"):
        compare(config, ["full rank"], seeds=())
