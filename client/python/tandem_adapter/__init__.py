"""Experts elsewhere for a `transformers` model: attention runs in torch, on any device, and the rows of each MoE layer go to an FFN
pool of Tandem.

    model, experts = tandem_adapter.load("deepseek-v2-lite/", "tcp://10.0.0.2:7000", device="cuda")
    model.generate(...)

`load` never reads the experts' weights; `attach` takes them out of a model that exists already.
"""

from .attach import attach
from .loading import load

__all__ = ["attach", "load"]
