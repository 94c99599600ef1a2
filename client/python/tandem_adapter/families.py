"""Families: which MoE blocks of transformers are known, and what their own code does between the rows and the experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tandem_client import Unsupported


@dataclass(frozen=True)
class Family:
    blocks: tuple[str, ...]  # classes of its MoE block
    attributes: tuple[str, ...]  # of a decoder layer, where the block may be
    facts: dict[str, str]  # settings of the wire -> attribute of the model's config

    def place_of(self, layer: torch.nn.Module) -> str | None:
        """The attribute that holds a MoE block; None in a dense layer."""
        for name in self.attributes:
            if type(getattr(layer, name, None)).__name__ in self.blocks:
                return name
        return None


_COMMON = {"hidden_size": "hidden_size", "vocab_size": "vocab_size", "num_layers": "num_hidden_layers", "top_k": "num_experts_per_tok"}
_DEEPSEEK = {**_COMMON, "num_experts": "n_routed_experts", "moe_intermediate_size": "moe_intermediate_size"}

# By class of the model; names as of transformers 4.57 and 5.
FAMILIES = {
    "DeepseekV2": Family(("DeepseekV2MoE", "DeepseekV2Moe"), ("mlp",), _DEEPSEEK),
    "DeepseekV3": Family(("DeepseekV3MoE",), ("mlp",), _DEEPSEEK),
    "Qwen3Moe": Family(("Qwen3MoeSparseMoeBlock",), ("mlp",),
                       {**_COMMON, "num_experts": "num_experts", "moe_intermediate_size": "moe_intermediate_size"}),
    "Mixtral": Family(("MixtralSparseMoeBlock",), ("block_sparse_moe", "mlp"),
                      {**_COMMON, "num_experts": "num_local_experts", "moe_intermediate_size": "intermediate_size"}),
}


def family_of(model: torch.nn.Module) -> Family:
    """By the names of the model's classes. Unsupported: names the class, and those that would do."""
    for kind in type(model).__mro__:
        for prefix, family in FAMILIES.items():
            if kind.__name__ in (f"{prefix}ForCausalLM", f"{prefix}Model", f"{prefix}PreTrainedModel"):
                return family
    raise Unsupported(f"{type(model).__name__} is not a model whose experts can be elsewhere: {', '.join(FAMILIES)} (ForCausalLM or Model "
                      "of transformers) would do")


def route(block: torch.nn.Module, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Hidden [batch, length, hidden] -> ids [rows, top_k], weights [rows, top_k], router logits where the block itself returns them."""
    routed = block.gate(hidden)
    if isinstance(routed, torch.Tensor):  # 4.57, Qwen3-MoE and Mixtral: a linear layer, and the block does the rest
        logits = routed.reshape(-1, routed.shape[-1])
        weights, ids = torch.topk(F.softmax(logits, dim=1, dtype=torch.float32), block.top_k, dim=-1)
        if getattr(block, "norm_topk_prob", True):  # Mixtral always renormalises
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return ids, weights, logits  # the weights stay float32, as Tandem's own attention sends them
    if len(routed) == 2:  # 4.57, DeepSeek
        return *routed, None
    _, weights, ids = routed  # 5
    return ids, weights, None


def returns_logits(block: torch.nn.Module) -> bool:
    """Whether the block's own forward gives (rows, router logits)."""
    return isinstance(block.gate, torch.nn.Linear)
