"""RemoteExperts: what stands in a decoder layer where the MoE block stood. It keeps the block's gate and shared experts where the FFN
pool leaves them to this side, under the same names, and has no experts."""

from __future__ import annotations

import threading

import numpy as np
import torch

from tandem_client import Client, InvalidArgument, Unavailable

from .families import returns_logits, route


class RemoteExperts(torch.nn.Module):
    """forward: hidden [batch, length, hidden] of any float dtype, on any device -> the same shape, dtype and device; with router logits
    beside it where the block returned them (None while the gate is remote). Inference only: no gradient flows through a wire."""

    def __init__(self, block: torch.nn.Module, client: Client, layer: int, tokens: TokenIds, reply_timeout: float):
        super().__init__()
        settings = client.settings
        self.client, self.layer, self.tokens, self.returns_logits = client, layer, tokens, returns_logits(block)
        self.reply_timeout = reply_timeout
        for name in ("top_k", "norm_topk_prob"):
            if hasattr(block, name):
                setattr(self, name, getattr(block, name))
        if settings.gate_on_client:
            self.gate = block.gate
        self.adds_shared = settings.shared_experts_on_client
        if self.adds_shared:
            self.shared_experts = block.shared_experts

    @torch.compiler.disable
    def forward(self, hidden: torch.Tensor):
        refuse_gradient(hidden)
        request = {"row_class": "decode" if hidden.shape[1] == 1 else "prefill", "timeout": self.reply_timeout}
        logits = None
        if self.client.settings.gate_on_client:
            ids, weights, logits = route(self, hidden)
            refuse_gradient(weights)  # of a gate that is trained while the rest is frozen
            request.update(expert_ids=ids.to("cpu", torch.int32).numpy(), expert_weights=weights.to("cpu", torch.float32).numpy())
        elif self.client.settings.token_ids:
            request["token_ids"] = self.tokens.of(hidden)
        rows = hidden.reshape(-1, hidden.shape[-1])
        sums, shared = self._ask(to_wire(rows, self.client.settings.activation_dtype), request, hidden)
        output = from_wire(sums).to(hidden.device, hidden.dtype).view(hidden.shape)
        if shared is not None:
            output = output + shared
        return (output, logits) if self.returns_logits else output

    def _ask(self, rows: np.ndarray, request: dict, hidden: torch.Tensor) -> tuple[np.ndarray, torch.Tensor | None]:
        """The experts' sums, and the shared experts' rows, which are computed while the others are on their way."""
        shared = None
        try:
            ticket = self.client.submit(self.layer, rows, **request)
            shared = self.shared_experts(hidden) if self.adds_shared else None
            return ticket.result(raw=True), shared
        except Unavailable:
            # A session that was lost (a process that stood still for a second) is opened again, and the rows are sent once more.
            if self.adds_shared and shared is None:
                shared = self.shared_experts(hidden)
            return self.client.compute(self.layer, rows, raw=True, **request), shared

    def extra_repr(self) -> str:
        return f"layer={self.layer}, {self.client.settings.num_experts} experts elsewhere"


def refuse_gradient(tensor: torch.Tensor) -> None:
    if torch.is_grad_enabled() and tensor.requires_grad:
        raise InvalidArgument("the experts are remote and give no gradient: run the model under torch.inference_mode() or no_grad()")


class TokenIds:
    """The tokens of the step that runs in a thread, for FFN ranks that ask for them: seen by a hook before the model's forward."""

    def __init__(self, decoder: torch.nn.Module):
        self._step = threading.local()
        decoder.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, _, args, kwargs) -> None:
        self._step.ids = kwargs.get("input_ids", args[0] if args else None)

    def of(self, hidden: torch.Tensor) -> np.ndarray:
        """int32 [batch x length]."""
        ids = getattr(self._step, "ids", None)
        if ids is None or ids.numel() != hidden.shape[0] * hidden.shape[1]:
            raise InvalidArgument("the FFN ranks take the token of each row (token_ids=yes): call the model with input_ids, not inputs_embeds")
        return ids.reshape(-1).to("cpu", torch.int32).numpy()


def to_wire(rows: torch.Tensor, dtype: str) -> np.ndarray:
    """[rows, hidden] -> the bits of bf16 as uint16 where the wire takes bf16, float32 otherwise; rounded on the device, then copied."""
    if dtype == "bf16":
        return rows.detach().to(torch.bfloat16).cpu().contiguous().view(torch.int16).numpy().view(np.uint16)
    return rows.detach().to(torch.float32).cpu().numpy()


def from_wire(rows: np.ndarray) -> torch.Tensor:
    """bf16 (uint16 bits), float32 or float64 -> a tensor on the CPU."""
    return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16) if rows.dtype == np.uint16 else torch.from_numpy(rows)
