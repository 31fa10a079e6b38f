"""A run so small that a test may train it, and one thread: small models are fastest so."""

import pytest
import torch

from inrank.language.presets import load_config
from inrank.language.training import Texts

torch.set_num_threads(1)

SMALL = [
    "data.source=text",
    "model.layers=1",
    "model.heads=2",
    "model.width=32",
    "model.context=16",
    "trainer.steps=12",
    "trainer.sequences=4",
    "trainer.batch_size=2",
    "trainer.evaluate_every=4",
    "trainer.evaluation_sequences=8",
    "trainer.checkpoint_every=4",
    "inrank.init=auto",
    "inrank.init_scale=1.0",
    "inrank.rank=2",
    "inrank.buffer=2",
    "inrank.max_rank=1.0",
    "inrank.warmup_steps=2",
    "inrank.check_every=4",
    "inrank.threshold=0.99",
    "optimizer.learning_rate=2e-3",
    "optimizer.factor_ratio=1.0",
    "schedule.kind=constant",
    "schedule.warmup=0",
]


@pytest.fixture(scope="session")
def prose(tmp_path_factory):
    """A file of text."""
    path = tmp_path_factory.mktemp("prose") / "prose.txt"
    words = "the state of the union is strong and free people govern themselves with reason hope law"
    pieces = words.split()
    path.write_text(" ".join(pieces[(i * i + i // 7) % len(pieces)] for i in range(3000)))
    return path


@pytest.fixture(scope="session")
def small(prose):
    """A function from overrides to a small configuration."""

    def make(*overrides):
        return load_config("tiny", [*SMALL, f'data.path=["{prose}"]', *overrides])

    return make


@pytest.fixture(scope="session")
def texts(small):
    """The text of these configurations, read once."""
    return Texts.read(small())
