"""Training, checkpoints and rollouts."""

from sfno_jax.training.checkpoint import (
    ArchitectureError,
    CheckpointError,
    CheckpointStore,
    DamagedCheckpointWarning,
)
from sfno_jax.training.config import ConfigError, TrainingConfig, load_config, preset_names
from sfno_jax.training.loop import Trainer, TrainingError, load_weights
from sfno_jax.training.stabiliser import Stabiliser

__all__ = [
    "ArchitectureError",
    "CheckpointError",
    "CheckpointStore",
    "ConfigError",
    "DamagedCheckpointWarning",
    "Stabiliser",
    "Trainer",
    "TrainingConfig",
    "TrainingError",
    "load_config",
    "load_weights",
    "preset_names",
]
