import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from inrank.commands.console import BadInput, guarded, notice, number, progress, show, stage


def _application(function):
    application = typer.Typer()
    application.command()(function)
    return CliRunner().invoke(application, [])


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BadInput("rank is 0; expected 1 or more"), 2, "error: rank is 0; expected 1 or more"),
        (FileNotFoundError("no file a.safetensors"), 2, "error: no file a.safetensors"),
        (FloatingPointError("loss is NaN"), 1, "error: FloatingPointError: loss is NaN"),
        (ImportError("matplotlib: pip install 'inrank[plots]'"), 1, "pip install 'inrank[plots]'"),
    ],
)
def test_errors_become_exit_codes_and_one_line(error, code, said):
    @guarded
    def command() -> None:
        raise error

    result = _application(command)
    assert result.exit_code == code
    assert said in result.stderr
    assert result.stdout == ""


def test_mistakes_in_the_program_keep_their_traceback():
    @guarded
    def command() -> None:
        raise KeyError("x")

    assert isinstance(_application(command).exception, KeyError)


def test_traceback_on_request(monkeypatch):
    monkeypatch.setenv("INRANK_TRACEBACK", "1")

    @guarded
    def command() -> None:
        raise BadInput("kept")

    assert isinstance(_application(command).exception, BadInput)


def test_warnings_go_to_stderr():
    @guarded
    def command() -> None:
        warnings.warn("layer h is skipped", UserWarning, stacklevel=1)
        notice("a remark")
        with progress("steps", 3) as done, stage("thinking"):
            done(2)
        print("out")

    result = _application(command)
    assert "warning: layer h is skipped" in result.stderr
    assert "a remark" in result.stderr
    assert result.stdout == "out\n"


def test_show_json_is_strict(capsys):
    show({"a": math.nan, "b": [math.inf, np.float32(1.5)], "c": np.arange(2)}, True, files=[Path("x.png")])
    values = json.loads(capsys.readouterr().out)
    assert values == {"a": None, "b": ["inf", 1.5], "c": [0, 1], "files": ["x.png"]}


def test_show_table(capsys):
    show({}, False, columns=("layer", "rank"), rows=[["mlp", 12345]], title="Ranks", note="[why]", files=[Path("x")])
    out = capsys.readouterr().out
    assert [line in out for line in ("Ranks", "12,345", "[why]", "wrote x")] == [True] * 4
    show({"loss": 0.12345, "list": [1]}, False)
    out = capsys.readouterr().out
    assert "0.1235" in out
    assert "list" not in out


def test_wide_tables_are_not_squeezed(capsys):
    show({}, False, columns=["x" * 30] * 6, rows=[["y" * 30] * 6])
    assert capsys.readouterr().out.count("y" * 30) == 6


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (True, "yes"), (0.5, "0.5"), (math.nan, "-"), (1234, "1,234"), ("s", "s")]
)
def test_number(value, text):
    assert number(value) == text
