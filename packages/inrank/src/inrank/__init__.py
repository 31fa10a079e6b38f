"""Incremental low-rank learning: train networks whose weight updates grow in rank as needed."""

from inrank.config import InRankConfig
from inrank.layers import FactorChange, InRankEfficientLinear, InRankLinear, LowRankLayer

__all__ = ["FactorChange", "InRankConfig", "InRankEfficientLinear", "InRankLinear", "LowRankLayer"]
