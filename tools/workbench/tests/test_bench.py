"""The benchmark harness, on a made-up package with peers that are right, wrong, broken or gone."""

import io
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from workbench.bench.definitions import read_bench
from workbench.bench.measure import relative_error, spread
from workbench.bench.peers import PeerAbsent, environment_python, read_peers
from workbench.bench.sides import Side, SideError, available_cpus
from workbench.bench.worker import read_frame, write_frame
from workbench.workspace import WorkspaceError

FIXTURE = Path(__file__).parent / "fixtures" / "bench_sum.py"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """The folder benchmarks/made_up of a workspace that has nothing else."""
    (tmp_path / "pyproject.toml").write_text('[tool.uv.workspace]\nmembers = ["packages/*"]\n')
    folder = tmp_path / "benchmarks" / "made_up"
    folder.mkdir(parents=True)
    shutil.copy(FIXTURE, folder)
    (folder / "peers.txt").write_text("[slow]\nnumpy>=2\n[gone]\nnumpy>=2\n")
    return folder


def _rows(folder: Path) -> dict[tuple[str, str | None], dict]:
    rows = json.loads((folder / "RESULTS.json").read_text())["rows"]
    return {(row["case"], row["peer"]): row for row in rows}


def _bench(command, suite: Path, *arguments: str) -> tuple[int, str, str]:
    return command(
        "bench",
        "made-up",
        "--env",
        f"slow={sys.executable}",
        "--no-install",
        *arguments,
        cwd=suite,
        XDG_CACHE_HOME=str(suite.parent / "cache"),
    )


def test_a_run_states_ratios_only_where_outputs_are_equal(command, suite: Path):
    code, out, err = _bench(command, suite)
    assert code == 1, "two unequal peers and a broken one"
    assert "3 rows failed or were not equal" in err
    rows = _rows(suite)

    slow = rows["rows", "slow"]
    assert slow["state"] == "measured"
    assert slow["error"] == 0
    assert len(slow["ratio"]["samples"]) >= 7
    assert slow["ratio"]["median"] < 0.5, "the peer sleeps 2 ms, ours takes microseconds"
    expected = [
        a / b for a, b in zip(slow["ours"]["seconds"]["samples"], slow["theirs"]["seconds"]["samples"], strict=True)
    ]
    assert slow["ratio"]["samples"] == expected
    # A sleeping peer takes wall time, not CPU time.
    theirs = slow["theirs"]
    assert theirs["cpu_seconds"]["median"] < 0.5 * theirs["seconds"]["median"]
    assert [goal["met"] for goal in slow["goals"]] == [True, False, True, False]
    assert slow["threads"] == 1
    assert slow["ours"]["versions"]["numpy"] == np.__version__

    for peer, state in (("wrong", "unequal"), ("shape", "unequal"), ("broken", "failed")):
        row = rows["rows", peer]
        assert (row["state"], row["ratio"]) == (state, None)
        assert row["ours"]["seconds"] is not None, "our own time is still worth having"
    assert rows["rows", "wrong"]["error"] == pytest.approx(2e-5, rel=0.5)
    assert rows["rows", "wrong"]["goals"][0]["met"] is False
    assert "no such kernel" in rows["rows", "broken"]["note"]
    assert rows["rows", "gone"]["state"] == "absent"

    text = (suite / "RESULTS.md").read_text()
    assert "no ratio" in text
    assert "**not met** (not measured)" in text
    assert str(suite.parent) not in text + (suite / "RESULTS.json").read_text()
    assert (suite / "RESULTS.png").stat().st_size < 200_000
    assert "rows / slow: ours / peer" in out


def test_single_sided_cases_and_memory(command, suite: Path):
    code, _, _ = _bench(command, suite, "--only", "::alone", "--only", "::memory")
    assert code == 0
    rows = _rows(suite)
    assert set(rows) == {("alone", None), ("memory", "slow")}
    assert rows["alone", None]["ours"]["seconds"]["median"] > 0
    memory = rows["memory", "slow"]
    assert memory["ours"]["seconds"] is None, "pairs=0 times nothing"
    assert memory["ratio"] is None
    # 3000 x 3000 float64 is 72 MB, made in the fresh process after its imports.
    assert 72 <= memory["ours"]["growth_mb"] < 500
    assert memory["ours"]["peak_mb"] > memory["ours"]["growth_mb"]
    assert memory["goals"][0]["met"]
    assert memory["goals"][1]["value"] == pytest.approx(1.0, rel=0.3)
    assert memory["ours"]["counted_mb"] == 72
    assert (memory["goals"][2]["value"], memory["goals"][2]["met"]) == (0.25, True)
    assert "72 / 288 = 0.250" in (suite / "RESULTS.md").read_text()


def test_quick_records_nothing_and_only_replaces_its_own_rows(command, suite: Path):
    _bench(command, suite, "--only", "::alone")
    before = (suite / "RESULTS.json").read_text()
    _bench(command, suite, "--quick", "--only", "rows")
    assert (suite / "RESULTS.json").read_text() == before
    quick = _rows(suite.parents[1] / "out" / "bench" / "made_up")
    assert len(quick["rows", "slow"]["ratio"]["samples"]) == 3
    _bench(command, suite, "--only", "::memory")
    assert set(_rows(suite)) == {("alone", None), ("memory", "slow")}


def test_claims_are_shown_and_kept(command, suite: Path):
    claim = {
        "title": "Stays bounded",
        "summary": "6 of 6 rollouts",
        "tables": [{"title": "T", "columns": ["seed", "steps"], "rows": [[0, 1460]]}],
    }
    (suite / "claim_stability.json").write_text(json.dumps(claim))
    code, _, _ = command("bench", "--report", cwd=suite)
    assert code == 0
    assert json.loads((suite / "RESULTS.json").read_text())["claims"] == [claim]
    text = (suite / "RESULTS.md").read_text()
    assert "## Claim: Stays bounded" in text
    assert "| 0 | 1460 |" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "no benchmarks are called 'nothing'"),
        (["made-up", "--only", "zzz"], "no case of made_up matches zzz"),
        (["made-up", "--threads", "0"], "--threads"),
        (["made-up", "--threads", "4096"], "processors"),
        (["made-up", "--env", "slow"], "SET=PYTHON"),
        (["made-up", "--env", "slow=nowhere"], "no such interpreter"),
        (["made-up", "--env", f"other={sys.executable}"], "no case names that set"),
    ],
)
def test_bad_arguments_exit_2(command, suite: Path, arguments, said):
    code, _, err = command("bench", *arguments, "--no-install", cwd=suite)
    assert code == 2
    assert said in err


def test_list(command, suite: Path):
    code, out, _ = command("bench", "--list", cwd=suite)
    assert code == 0
    assert "made_up/bench_sum.py::alone (no peer)" in out


CASE = {"name": "rows", "params": {"size": 3}}


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ("CASES = []", "declares no CASES"),
        ("1 / 0", "does not import"),
        (f"CASES = [{CASE!r}, {CASE!r}]", "2 cases are called 'rows'"),
        (f"CASES = [{CASE | {'pears': 1}!r}]", "unknown key 'pears'"),
        (f"CASES = [{CASE | {'pairs': 3}!r}]", "at least 7"),
        (f"CASES = [{CASE | {'goal': 'ratio <= 1'}!r}]", "a goal reads"),
        (f"CASES = [{CASE | {'peers': {'slow': {}}}!r}]", "tolerance is missing"),
        (f"CASES = [{CASE | {'peers': {'new': {'tolerance': 1.0}}}!r}]", "no function peer_new"),
        (f"CASES = [{CASE!r}]\nIMPORTS = {{}}", "IMPORTS must list"),
        (f"CASES = [{CASE!r}]\ninputs = None", "no function inputs"),
    ],
)
def test_a_wrong_bench_file_is_refused(tmp_path: Path, cases, said):
    file = tmp_path / "bench_wrong.py"
    file.write_text(FIXTURE.read_text() + f"\n{cases}\n")
    with pytest.raises(WorkspaceError, match=said):
        read_bench(file)


def test_peer_sets(tmp_path: Path):
    file = tmp_path / "peers.txt"
    file.write_text("# c\n[a]\nducc0>=0.36  # why\n[b]\nwith pip\ntorch>=2.11\n--no-deps x>=1\n")
    sets = read_peers(file)
    assert sets["a"].requirements == ("ducc0>=0.36", "numpy>=2")
    assert sets["b"].without_dependencies == ("x>=1",)
    assert sets["b"].with_pip
    assert sets["a"].key() != sets["b"].key()
    assert read_peers(tmp_path / "none.txt") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ducc0>=1", "before any"),
        ("[a]\nducc0", "needs a lower bound"),
        ("[a]\nducc0 @ file:///x", "needs a lower bound"),
        ("[a]\n--upgrade x>=1", "is no requirement"),
    ],
)
def test_a_wrong_peers_file_is_refused(tmp_path: Path, text, said):
    file = tmp_path / "peers.txt"
    file.write_text(text)
    with pytest.raises(WorkspaceError, match=said):
        read_peers(file)


@pytest.mark.slow
def test_an_environment_is_built_once_and_outside_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "peers.txt").write_text("[fine]\nnumpy>=2\n--no-deps packaging>=24\n[bad]\nnumpy>=99999\n")
    sets = read_peers(tmp_path / "peers.txt")
    with pytest.raises(PeerAbsent, match="--no-install"):
        environment_python(sets["fine"], install=False, cache=tmp_path / "cache")
    # From uv's cache where that will do, so that the test passes without a network too.
    monkeypatch.setenv("UV_OFFLINE", "1")
    try:
        python = environment_python(sets["fine"], cache=tmp_path / "cache")
    except PeerAbsent:
        monkeypatch.delenv("UV_OFFLINE")
        python = environment_python(sets["fine"], cache=tmp_path / "cache")
    stamp = (python.parents[1] / "complete.json").stat().st_mtime_ns
    assert environment_python(sets["fine"], cache=tmp_path / "cache") == python
    assert (python.parents[1] / "complete.json").stat().st_mtime_ns == stamp
    with Side(python, FIXTURE, "slow", 1) as side:
        assert "numpy" in side.versions
    with pytest.raises(PeerAbsent, match="numpy"):
        environment_python(sets["bad"], cache=tmp_path / "cache")
    with pytest.raises(PeerAbsent):
        environment_python(sets["bad"], install=False, cache=tmp_path / "cache")


def test_a_side_that_dies_says_so(tmp_path: Path):
    file = tmp_path / "bench_dies.py"
    file.write_text(
        FIXTURE.read_text() + "\nimport os, sys\ndef ours(case, data):\n"
        "    print('out of memory', file=sys.stderr, flush=True)\n    os._exit(3)\n"
    )
    case = read_bench(file).cases[0]
    with (
        Side(sys.executable, file, "ours", 1) as side,
        pytest.raises(SideError, match=r"ours: its process ended \(3\): out of memory"),
    ):
        side.ask("build", case=case.message())


def test_threads_are_pinned(tmp_path: Path):
    file = tmp_path / "bench_pins.py"
    file.write_text(
        FIXTURE.read_text() + "\nimport os\ndef ours(case, data):\n"
        "    pinned = [int(os.environ['OMP_NUM_THREADS'])]\n"
        "    if hasattr(os, 'sched_getaffinity'):\n"
        "        pinned.append(len(os.sched_getaffinity(0)))\n"
        "    return lambda: pinned\n"
    )
    case = read_bench(file).cases[0]
    for threads in range(1, len(available_cpus()) + 1)[:2]:
        with Side(sys.executable, file, "ours", threads) as side:
            _, output = side.ask("build", case=case.message())
            assert output is not None
            assert set(output.tolist()) == {threads}


def test_frames_carry_arrays_and_refuse_pickles():
    stream = io.BytesIO()
    array = np.arange(6.0).reshape(2, 3) * 1j
    write_frame(stream, {"a": 1}, array)
    write_frame(stream, {"b": 2})
    stream.seek(0)
    header, got = read_frame(stream)
    assert header == {"a": 1}
    np.testing.assert_array_equal(got, array)
    assert read_frame(stream) == ({"b": 2}, None)
    with pytest.raises(EOFError):
        read_frame(stream)
    with pytest.raises(ValueError, match="pickle"):
        write_frame(io.BytesIO(), {}, np.array([object()]))
    with pytest.raises(ValueError, match="something else wrote"):
        read_frame(io.BytesIO(b"A warning: not a frame"))


def test_relative_error():
    x = np.array([1.0, -4.0])
    assert relative_error(x, x) == 0
    assert relative_error(x + 0.04, x) == pytest.approx(0.01)
    assert relative_error(np.array([1j]), np.array([1.0])) == pytest.approx(math.sqrt(2))
    assert relative_error(np.array([np.nan]), np.array([np.nan])) == math.inf
    assert relative_error(x, x * 0) == 4


def test_spread():
    result = spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (result.lower, result.median, result.upper) == (2, 3, 4)
