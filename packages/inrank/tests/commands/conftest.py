"""A small run that several commands look at, and one thread: small models are fastest so."""

import pytest
import torch
from typer.testing import CliRunner

from inrank.cli import main

torch.set_num_threads(1)

SMALL = {
    "model.layers": 1, "model.heads": 2, "model.width": 32, "model.context": 16, "trainer.steps": 6,
    "trainer.sequences": 4, "trainer.batch_size": 4, "trainer.evaluate_every": 3, "trainer.evaluation_sequences": 4,
    "trainer.checkpoint_every": 3, "inrank.buffer": 2, "inrank.max_rank": 1.0, "inrank.warmup_steps": 1,
    "inrank.check_every": 2, "inrank.threshold": 0.99,
}  # fmt: skip


@pytest.fixture(scope="session")
def invoke():
    """Run a command line."""

    def call(*arguments):
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return call


@pytest.fixture(scope="session")
def settings():
    """Options that make a preset small."""
    return [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]


@pytest.fixture(scope="session")
def prose(tmp_path_factory):
    """A file of text."""
    path = tmp_path_factory.mktemp("prose") / "prose.txt"
    path.write_text("the state of the union is strong and free people govern themselves. " * 100)
    return path


@pytest.fixture(scope="session")
def run(invoke, settings, prose, tmp_path_factory):
    """A finished training run."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    result = invoke("train", "--text", prose, *settings, "--out", folder)
    assert result.exit_code == 0, result.output
    return folder
