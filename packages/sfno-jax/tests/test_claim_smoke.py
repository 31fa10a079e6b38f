"""The script behind the stability claim runs from its command line, can be stopped, and goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "sfno_jax" / "claim_stability.py"


def claim(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--quick", "--seeds", "0", "--minutes", "1", "--out", str(out), *options]
    environment = {**os.environ, "MPLCONFIGDIR": str(out / "matplotlib")}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)


def test_claim_script_stops_goes_on_and_reports(tmp_path: Path) -> None:
    stopped = claim(tmp_path, "--arms", "sfno", "--budget-seconds", "1")
    assert stopped.returncode == 75, stopped.stderr
    assert "run the same command again" in stopped.stdout
    done = claim(tmp_path, "--arms", "sfno")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "quick" / "claim_stability.json").read_text())
    rows = {row["arm"]: row for row in report["rows"]}
    assert rows["sfno"]["rollouts"] == 2
    # the solver's own runs must pass the bands they define, and a frozen state must not
    assert rows["another"]["plausible"] == 2
    assert rows["persistence"]["plausible"] == 0
    assert "not frozen" in rows["persistence"]["failures"]
    assert "| SFNO | 0 |" in (tmp_path / "quick" / "claim_stability.md").read_text()
    assert (tmp_path / "quick" / "claim_stability.png").stat().st_size < 200_000
