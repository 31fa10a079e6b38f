"""Pictures of ranks, spectra and memory: plain arrays in, matplotlib figures out; no window and no global state.

Needs matplotlib (``pip install 'inrank[plots]'``), which is imported when a figure is made.
"""

from inrank.plotting.canvas import new_figure, save_figure
from inrank.plotting.losses import loss_figure
from inrank.plotting.memory import memory_figure
from inrank.plotting.modes import theory_figure
from inrank.plotting.ranks import rank_figure, rank_map_figure
from inrank.plotting.spectra import spectrum_figure

__all__ = [
    "loss_figure",
    "memory_figure",
    "new_figure",
    "rank_figure",
    "rank_map_figure",
    "save_figure",
    "spectrum_figure",
    "theory_figure",
]
