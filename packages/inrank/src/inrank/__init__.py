"""Incremental low-rank learning: train networks whose weight updates grow in rank as needed."""

from inrank.config import InRankConfig
from inrank.layers import (
    FactorChange,
    InRankConv1D,
    InRankConv2d,
    InRankEfficientConv1D,
    InRankEfficientConv2d,
    InRankEfficientEmbedding,
    InRankEfficientLinear,
    InRankEmbedding,
    InRankLinear,
    LowRankLayer,
)
from inrank.stages import FinalizeReport, finalize, merge
from inrank.wrapping import WrapReport, low_rank_layers, summary, wrap

__all__ = [
    "FactorChange",
    "FinalizeReport",
    "InRankConfig",
    "InRankConv1D",
    "InRankConv2d",
    "InRankEfficientConv1D",
    "InRankEfficientConv2d",
    "InRankEfficientEmbedding",
    "InRankEfficientLinear",
    "InRankEmbedding",
    "InRankLinear",
    "LowRankLayer",
    "WrapReport",
    "finalize",
    "low_rank_layers",
    "merge",
    "summary",
    "wrap",
]
