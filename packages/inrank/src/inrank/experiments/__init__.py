"""The paper's first claim beyond GPT: spectra of D_t for an MLP, a CNN and a ViT on digits, under SGD and Adam."""

from inrank.experiments.digits import glyph_digits, read_digits
from inrank.experiments.networks import NETWORKS, make_network
from inrank.experiments.training import OPTIMIZERS, DigitsRun, track_digits

__all__ = ["NETWORKS", "OPTIMIZERS", "DigitsRun", "glyph_digits", "make_network", "read_digits", "track_digits"]
