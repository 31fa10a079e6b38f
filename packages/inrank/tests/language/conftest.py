"""One thread: small models are fastest so, whatever else runs on the machine."""

import torch

torch.set_num_threads(1)
