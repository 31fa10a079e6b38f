"""Incremental low-rank learning: train networks whose weight updates grow in rank as needed."""

from inrank.checkpoint import latest, load, restore_ranks, save
from inrank.checkpoint_spectra import update_spectra
from inrank.config import InRankConfig
from inrank.controller import RankController
from inrank.events import RankEvent
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
from inrank.memory import MemoryReport, measure_memory
from inrank.null_model import null_rank
from inrank.rank_report import RankReport
from inrank.spectrum_tracker import SpectrumTracker
from inrank.stages import FinalizeReport, finalize, merge
from inrank.wrap_report import WrapReport
from inrank.wrapping import low_rank_layers, summary, wrap

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
    "MemoryReport",
    "RankController",
    "RankEvent",
    "RankReport",
    "SpectrumTracker",
    "WrapReport",
    "finalize",
    "latest",
    "load",
    "low_rank_layers",
    "measure_memory",
    "merge",
    "null_rank",
    "restore_ranks",
    "save",
    "summary",
    "update_spectra",
    "wrap",
]
