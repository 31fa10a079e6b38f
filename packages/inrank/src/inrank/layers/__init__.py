"""Low-rank layers: what replaces nn.Linear, Hugging Face's Conv1D, nn.Conv2d and nn.Embedding."""

from inrank.layers.base import FactorChange, LowRankLayer
from inrank.layers.linear import InRankEfficientLinear, InRankLinear

__all__ = ["FactorChange", "InRankEfficientLinear", "InRankLinear", "LowRankLayer"]
