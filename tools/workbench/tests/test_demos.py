"""The demo command, with demos that pass, fail in every way, and must be stopped."""

import contextlib
import io
import json
import os
import signal
import time
from pathlib import Path

import pytest
from rich.console import Console

from workbench.demo_display import Display
from workbench.demo_result import ResultError, read_result
from workbench.demos import DemoRun, choose
from workbench.workspace import WorkspaceError

GOOD = {"title": "T", "summary": "one line", "tables": [], "figures": []}


def test_a_good_demo_gives_a_page(command, demo_path: Path, tmp_path: Path):
    code, out, err = command("demo", "fake-good", "--out", str(tmp_path / "out"), cwd=tmp_path, path=demo_path)
    assert (code, err) == (0, "")
    lines = [line.split("  ", 1)[-1] for line in out.splitlines()]
    assert "first stage" in out
    assert any(line.endswith("passed error 0.125 & falling") for line in lines)
    page = (tmp_path / "out" / "index.html").read_text()
    assert "A &lt;b&gt;title&lt;/b&gt;" in page
    assert "&lt;x&gt;" in page
    assert 'src="fake-good/one.png"' in page
    assert "://" not in page, "the page must need nothing from elsewhere"
    assert (tmp_path / "out" / "fake-good" / "log.txt").read_text() == "a note on stderr\n"


def test_failures_do_not_stop_the_others(command, demo_path: Path, tmp_path: Path):
    names = ["crash", "silent", "no-figure", "killed", "good"]
    code, out, _ = command("demo", *(f"fake-{name}" for name in names), "--out", "o", cwd=tmp_path, path=demo_path)
    assert code == 1
    assert "1 passed, 4 failed" in out
    state = {name: json.loads((tmp_path / "o" / f"fake-{name}" / "status.json").read_text()) for name in names}
    assert state["good"]["state"] == "passed"
    assert state["crash"]["line"] == "exit code 1: ZeroDivisionError: division by zero"
    assert state["silent"]["line"] == "the demo wrote no result.json"
    assert "missing.png" in state["no-figure"]["line"]
    assert state["killed"]["line"] == "signal SIGKILL"
    assert "ZeroDivisionError" in (tmp_path / "o" / "index.html").read_text()


def test_the_page_keeps_demos_of_earlier_runs(command, demo_path: Path, tmp_path: Path):
    for name in ("fake-good", "fake-crash"):
        command("demo", name, "--out", "o", cwd=tmp_path, path=demo_path)
    page = (tmp_path / "o" / "index.html").read_text()
    assert 'id="fake-good"' in page
    assert 'id="fake-crash"' in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fake-goood"], "did you mean fake-good"),
        (["zzz"], "there are: "),
        (["--out"], "requires an argument"),
    ],
)
def test_bad_arguments_exit_2(command, demo_path: Path, tmp_path: Path, arguments, said):
    code, _, err = command("demo", *arguments, cwd=tmp_path, path=demo_path)
    assert code == 2
    assert said in err


def test_list_runs_nothing(command, demo_path: Path, tmp_path: Path):
    code, out, _ = command("demo", "--list", cwd=tmp_path, path=demo_path)
    assert code == 0
    assert {"fake-good", "fake-endless"} <= set(out.split())
    assert not (tmp_path / "out").exists()


def test_a_folder_of_the_user_is_not_emptied(command, demo_path: Path, tmp_path: Path):
    precious = tmp_path / "o" / "fake-good" / "thesis.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work")
    code, _, err = command("demo", "fake-good", "--out", str(tmp_path / "o"), cwd=tmp_path, path=demo_path)
    assert code == 2
    assert "--out" in err
    assert precious.read_text() == "years of work"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_demo_and_its_children(start, demo_path: Path, tmp_path: Path, number):
    process = start("demo", "fake-endless", "--out", "o", cwd=tmp_path, path=demo_path)
    pids_file = tmp_path / "o" / "pids"
    deadline = time.monotonic() + 60
    while not pids_file.exists() or len(pids_file.read_text().split()) < 2:
        assert time.monotonic() < deadline, "the demo did not start"
        time.sleep(0.05)
    pids = [int(pid) for pid in pids_file.read_text().split()]
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped" in err
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a child outlived the command"
        time.sleep(0.05)
    status = json.loads((tmp_path / "o" / "fake-endless" / "status.json").read_text())
    assert status["state"] == "stopped"


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        # A zombie that init has yet to collect is not alive.
        return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"summary": "two\nlines"}, "one line"),
        ({"summary": 3}, "summary must be a str"),
        ({"extra": 1}, "unknown key 'extra'"),
        ({"tables": [{"title": "t", "columns": ["a"], "rows": [[1, 2]]}]}, "must have 1 cells"),
        ({"tables": [{"title": "t", "columns": [], "rows": []}]}, "columns must be"),
        ({"tables": [{"title": "t", "columns": ["a"], "rows": [[[1]]]}]}, "no text or number"),
        ({"figures": [{"file": "../x.png", "caption": ""}]}, "in the demo's folder"),
        ({"figures": [{"file": "x.exe", "caption": ""}]}, "must be a picture"),
        ({"figures": [{"file": "empty.png", "caption": ""}]}, "is empty"),
        ({"figures": "x.png"}, "figures must be a list"),
    ],
)
def test_a_wrong_result_is_refused(tmp_path: Path, change, said):
    (tmp_path / "empty.png").touch()
    (tmp_path / "result.json").write_text(json.dumps(GOOD))
    assert read_result(tmp_path).title == "T"
    (tmp_path / "result.json").write_text(json.dumps(GOOD | change))
    with pytest.raises(ResultError, match=said):
        read_result(tmp_path)


def test_a_truncated_result_is_refused(tmp_path: Path):
    (tmp_path / "result.json").write_text(json.dumps(GOOD)[:-5])
    with pytest.raises(ResultError, match="not JSON"):
        read_result(tmp_path)


def test_module_names_are_taken_for_distributions():
    assert choose(["sfno_jax"], ["sfno-jax"]) == ["sfno-jax"]
    with pytest.raises(WorkspaceError, match="no installed distribution"):
        choose([], [])


def test_the_live_table_shows_stage_and_result():
    console = Console(file=io.StringIO(), force_terminal=True, width=100, record=True)
    runs = [DemoRun("one", "passed", "", 1.0, "fine"), DemoRun("two", "running", "stage 3", 2.0)]
    with Display(console) as display:
        display.show(runs)
    text = console.export_text()
    assert "fine" in text
    assert "stage 3" in text
