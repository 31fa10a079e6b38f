"""Low-rank layers: what replaces nn.Linear, Hugging Face's Conv1D, nn.Conv2d and nn.Embedding."""

from inrank.layers.base import FLOATS, LowRankLayer
from inrank.layers.conv1d import InRankConv1D, InRankEfficientConv1D
from inrank.layers.conv2d import InRankConv2d, InRankEfficientConv2d
from inrank.layers.embedding import InRankEfficientEmbedding, InRankEmbedding
from inrank.layers.factor_change import FactorChange
from inrank.layers.linear import InRankEfficientLinear, InRankLinear

__all__ = [
    "FLOATS",
    "FactorChange",
    "InRankConv1D",
    "InRankConv2d",
    "InRankEfficientConv1D",
    "InRankEfficientConv2d",
    "InRankEfficientEmbedding",
    "InRankEfficientLinear",
    "InRankEmbedding",
    "InRankLinear",
    "LowRankLayer",
]
