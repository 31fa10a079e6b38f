"""The demo, with very few steps: its contract with the tool that shows it."""

import json

from inrank.demo import DemoSettings, main


def test_demo_leaves_a_result_and_its_pictures(tmp_path, capsys):
    main(
        tmp_path,
        DemoSettings(steps=20, every=5, width=64, overrides=("model.width=32", "model.heads=2", "inrank.buffer=4")),
    )
    result = json.loads((tmp_path / "result.json").read_text())
    assert set(result) == {"title", "summary", "tables", "figures"}  # what the page reads
    assert {"title", "summary", "tables", "figures"} <= result.keys()
    for figure in result["figures"]:
        assert 0 < (tmp_path / figure["file"]).stat().st_size < 200_000
    rows = result["tables"][0]["rows"]
    assert [row[0] for row in rows] == ["full rank", "InRank-Efficient", "InRank (W_0 kept)", "fixed rank"]
    assert all(isinstance(row[1], float) for row in rows)
    assert all(len(table["columns"]) == len(row) for table in result["tables"] for row in table["rows"])
    stages = capsys.readouterr().out.splitlines()
    assert stages[0].startswith("theory")
    assert len(stages) >= 7
