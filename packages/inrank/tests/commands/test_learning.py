"""train, resume, compare, generate, report and merge, end to end."""

import json
import shutil

import pytest

COMMANDS = ("train", "resume", "compare", "generate", "report", "merge")


def test_train_says_what_came_out(run, invoke, settings, prose, tmp_path):
    assert (run / "config.json").is_file()
    result = invoke(
        "train", "--text", prose, *settings, "--method", "inrank-full", "--out", tmp_path / "full", "--json"
    )
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert (printed["steps"], printed["method"]) == (6, "inrank-full")
    assert printed["ranks"]["layers"][0]["null_rank"] == 4
    again = invoke("train", "--text", prose, *settings, "--out", run)
    assert (again.exit_code, "inrank resume" in again.output) == (2, True)


def test_resume_goes_on(run, invoke, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / "step-00000006")
    result = invoke("resume", copy, "--json")
    assert result.exit_code == 0, result.output
    whole, resumed = ([json.loads(x) for x in (f / "log.jsonl").read_text().splitlines()] for f in (run, copy))
    assert [x["loss"] for x in whole if "loss" in x] == [x["loss"] for x in resumed if "loss" in x]


def test_compare(invoke, settings, prose, tmp_path):
    data = ["--set", "data.source=text", "--set", f'data.path=["{prose}"]']
    names = ["--variant", "full rank", "--variant", "InRank-Efficient"]
    result = invoke("compare", *settings, *data, *names, "--out", tmp_path / "c")
    assert result.exit_code == 0, result.output
    assert "InRank-Efficient" in result.stdout
    assert (tmp_path / "c" / "result.json").is_file()
    printed = json.loads(invoke("compare", *settings, *data, *names, "--out", tmp_path / "d", "--json").stdout)
    assert [row[0] for row in printed["table"]["rows"]] == ["full rank", "InRank-Efficient"]


def test_generate(run, invoke):
    texts = [invoke("generate", run, "--tokens", 8, "--seed", seed).stdout for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("The state of the Union")
    assert json.loads(invoke("generate", run, "--tokens", 2, "--json").stdout)["text"].startswith("The state")


def test_report(run, invoke, tmp_path):
    result = invoke("report", run, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "without training" in result.stdout
    page = (tmp_path / "report.md").read_text()
    assert "![ranks](ranks.png)" in page
    assert (tmp_path / "ranks.png").stat().st_size < 200_000
    printed = json.loads(invoke("report", run, "--out", tmp_path, "--json").stdout)
    assert [v["step"] for v in printed["validations"]] == [0, 3, 6]
    assert printed["null_ranks"]


def test_merge(run, invoke, tmp_path):
    result = invoke("merge", run, "--out", tmp_path / "dense", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["parameters"] > printed["parameters_before"]
    one, other = (invoke("generate", m, "--tokens", 20, "--temperature", 0).stdout for m in (run, tmp_path / "dense"))
    assert one == other


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--preset", "huge"], "no configuration 'huge'"),
        (["train", "--set", "trainer.stepz=1"], "did you mean 'steps'"),
        (["train", "--method", "inrank"], "method.name = 'inrank' is unknown"),
        (["train", "--text", "no-such-file"], "no text at no-such-file"),
        (["resume", "no-such-run"], "no run in no-such-run"),
        (["compare", "--variant", "x"], "no variant 'x'"),
        (["compare", "--budget", "time"], "budget must be"),
        (["generate", "no-such-run"], "no run in no-such-run"),
        (["report", "no-such-run"], "no run in no-such-run"),
        (["merge", "no-such-run"], "no run in no-such-run"),
    ],
)
def test_bad_input_exits_2(invoke, tmp_path, arguments, said):
    out = ["--out", tmp_path] if arguments[0] in ("train", "compare") else []
    result = invoke(*arguments, *out)
    assert (result.exit_code, said in result.output) == (2, True), result.output


@pytest.mark.parametrize("command", ["train", "merge", "report", "theory"])
def test_a_file_in_the_place_of_the_folder_exits_2(run, invoke, tmp_path, command):
    (tmp_path / "file").write_text("")
    result = invoke(command, *([run] if command in ("merge", "report") else []), "--out", tmp_path / "file")
    assert (result.exit_code, "Invalid value for '--out'" in result.output) == (2, True), result.output


def test_merge_into_the_run_itself_exits_2(run, invoke):
    result = invoke("merge", run, "--out", run)
    assert (result.exit_code, "holds a training run" in result.output) == (2, True), result.output
    assert not (run / "model").exists()


def test_what_there_is_nothing_to_do_for_is_said(run, invoke, settings, prose, tmp_path):
    assert "is at its end, after 6 steps" in invoke("resume", run).stderr
    full = ("train", "--text", prose, *settings, "--method", "full-rank", "--out", tmp_path / "full")
    assert invoke(*full).exit_code == 0
    result = invoke("merge", tmp_path / "full", "--out", tmp_path / "merged")
    assert (result.exit_code, "has no low-rank layers" in result.stderr) == (0, True), result.output


def test_galore_says_that_it_cannot_be_resumed(invoke, settings, prose, tmp_path):
    result = invoke("train", "--text", prose, *settings, "--method", "galore", "--out", tmp_path / "g")
    assert "a galore run that is stopped cannot be resumed" in result.stderr


def test_ctrl_c_says_how_to_go_on(invoke, settings, prose, tmp_path, monkeypatch):
    from inrank.language.training import Trainer

    step = Trainer.step

    def interrupted(trainer):
        if trainer.counters.step == 4:
            raise KeyboardInterrupt
        return step(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        result = invoke("train", "--text", prose, *settings, "--out", tmp_path)
    assert result.exit_code == 130
    assert f"stopped at step 4; `inrank resume {tmp_path}` goes on" in result.stderr
    assert json.loads(invoke("resume", tmp_path, "--json").stdout)["steps"] == 6


def test_failure_exits_1(invoke, settings, prose, tmp_path):
    result = invoke("train", "--text", prose, *settings, "--set", "optimizer.learning_rate=1e18", "--out", tmp_path)
    assert result.exit_code == 1
    assert "is not finite" in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(invoke, command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert f"Example: inrank {command}" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("compare", "may be repeated [default: all]"),
        ("compare", "comparison-*.md"),
        ("report", "[default: the run's]"),
        ("spectrum", "[default: both]"),
        ("null-model", "[default: the first three]"),
    ],
)
def test_help_shows_what_is_in_brackets(invoke, command, said):
    words = " ".join(invoke(command, "--help").stdout.replace("│", " ").split())
    assert said in words
