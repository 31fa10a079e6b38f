"""The doctor says what runs, and finds what is wrong."""

import json

import jax
import numpy as np
import pytest

from sfno_jax import _native, doctor
from sfno_jax.transforms import RealSHT, backend


def test_report_names_what_runs(monkeypatch, tmp_path):
    facts = doctor.report()
    json.dumps(facts, allow_nan=False)
    assert facts["backend"] == backend()
    assert facts["native"]["available"] == _native.available()
    assert (facts["native"]["reason"] is None) == _native.available()
    assert facts["libraries"]["jax"] == jax.__version__
    assert facts["libraries"]["numpy"] == np.__version__
    assert facts["threads"]["processors"] >= 1
    assert facts["x64"] is False
    monkeypatch.setenv("SFNO_JAX_EGM96", str(tmp_path))
    data = doctor.report()["data"]
    assert data["egm96"] is None
    assert "apt-get install proj-data" in data["egm96_hint"]


def test_a_missing_kernel_is_explained(monkeypatch):
    monkeypatch.setattr(_native, "_extension", lambda: (None, "no compiler was there"))
    native = doctor.report()["native"]
    assert native == {"available": False, "instruction_set": None, "reason": "no compiler was there"}


def test_checks_pass_here():
    checks = doctor.self_check()
    assert len(checks) >= 4
    assert [check.name for check in checks if not check.passed] == []
    assert all(check.error > 0 for check in checks)
    table = doctor.describe({"a": 1}, checks)
    assert table["checks"][0]["passed"] is True
    json.dumps(table)


@pytest.mark.parametrize("wrong", [1e-3, float("nan")])
def test_a_wrong_transform_is_found(monkeypatch, wrong):
    right = RealSHT.__call__
    monkeypatch.setattr(RealSHT, "__call__", lambda self, x: right(self, x) * (1 + wrong))
    failed = [check.name for check in doctor.self_check() if not check.passed]
    assert any("round trip" in name for name in failed)
