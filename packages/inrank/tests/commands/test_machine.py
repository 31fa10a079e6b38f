"""doctor, demo and bench, end to end."""

import json

import pytest


def test_doctor(invoke):
    result = invoke("doctor", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["torch"]
    assert all(check["passed"] for check in printed["checks"])
    assert "growth leaves the function unchanged" in invoke("doctor").stdout


def test_doctor_fails_when_a_check_does(invoke, monkeypatch):
    from inrank import doctor

    monkeypatch.setattr(doctor, "self_check", lambda: [doctor.Check("x", 1.0, 0.5)])
    result = invoke("doctor")
    assert (result.exit_code, "WRONG" in result.stdout) == (1, True)


def test_bench(invoke):
    result = invoke("bench", "--width", 64, "--layers", 1, "--steps", 2, "--json")
    assert result.exit_code == 0, result.output
    rows = {row["method"]: row for row in json.loads(result.stdout)["rows"]}
    assert rows["full rank"]["ratio"] == 1
    assert rows["low rank, mlp and attention"]["state_ratio"] < rows["low rank, mlp"]["state_ratio"] < 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "--width", 50], "width must be a multiple of 32, got 50"),
        (["bench", "--part", 0], "a rank is a part of the width"),
        (["demo", "--steps", 1], "Invalid value"),
        (["no-such-command"], "No such command"),
    ],
)
def test_bad_input_exits_2(invoke, arguments, said):
    result = invoke(*arguments)
    assert (result.exit_code, said in result.output) == (2, True), result.output


@pytest.mark.parametrize("command", ["doctor", "demo", "bench"])
def test_help_has_an_example(invoke, command):
    assert f"Example: inrank {command}" in " ".join(invoke(command, "--help").stdout.split())
