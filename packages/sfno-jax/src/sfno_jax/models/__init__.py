"""Neural operators on the sphere."""

from sfno_jax.models.config import FNOConfig, SFNOConfig
from sfno_jax.models.layers import parameter_count
from sfno_jax.models.pretrained import from_pretrained, save_pretrained
from sfno_jax.models.sfno import FNO, SFNO, build_model, matched_fno_config
from sfno_jax.models.statistics import ChannelStatistics

__all__ = [
    "FNO",
    "SFNO",
    "ChannelStatistics",
    "FNOConfig",
    "SFNOConfig",
    "build_model",
    "from_pretrained",
    "matched_fno_config",
    "parameter_count",
    "save_pretrained",
]
