"""attach: takes the MoE blocks out of a transformers model and puts remote ones in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tandem_client import Client, InvalidArgument, Unsupported

from .block import RemoteExperts, TokenIds
from .families import Family, family_of


def attach(model: torch.nn.Module, address: str | Sequence[str] | Client, *, expect: Mapping[str, object] | None = None,
           key_file: str | None = None, tls_files: tuple[str, str, str] | None = None, timeout: float = 30.0,
           reply_timeout: float = 600.0) -> Client:
    """Replaces every MoE block of `model`, for good: its experts' weights are freed. The gate and the shared experts stay in the model where the
    FFN ranks leave them to attention (their `gate` and `shared_experts` settings say), and go otherwise.

    `model`: DeepSeek V2 or V3, Qwen3-MoE or Mixtral of transformers, on any device, the meta device too. `address`: the FFN ranks, in order
    of rank, or a Client, which several models of one shape may share. Returns the Client; close it when the model is not used any more.
    Unsupported: another model, by its class; InvalidArgument: the FFN ranks hold a model of another shape, by the facts that differ. Weights
    are not compared: `expect={"model_fingerprint": ...}` insists on those of an earlier `tandem_client.describe(address).raw`.
    `timeout`: seconds for reaching the ranks, now and when one is lost, which is noticed within a second. `reply_timeout`: seconds for the rows of
    one layer, of a long prompt too.
    """
    family = family_of(model)
    expected = {**_facts(model.config, family), **(expect or {})}
    client = address if isinstance(address, Client) else Client(address, expect=expected, key_file=key_file, tls_files=tls_files, timeout=timeout)
    try:
        client.settings.check(expected, f"the {type(model).__name__} here", "the FFN ranks")
        _check(model, client)
        _replace(model, family, client, reply_timeout)
    except BaseException:
        if client is not address:
            client.close()
        raise
    return client


def _facts(config, family: Family) -> dict[str, object]:
    shared = (getattr(config, "n_shared_experts", None) or 0) * getattr(config, "moe_intermediate_size", 0)
    return {**{setting: getattr(config, attribute) for setting, attribute in family.facts.items()}, "shared_intermediate_size": shared}


def _check(model: torch.nn.Module, client: Client) -> None:
    settings = client.settings
    if settings.raw["routing"] != "model":
        raise Unsupported(f"the FFN ranks route {settings.raw['routing']}, for benchmarks only: start them without --balanced-routing")
    if getattr(model.config, "output_router_logits", False) and not settings.gate_on_client:
        _refuse_router_logits("config.output_router_logits")


def _refuse_router_logits(what: str) -> None:
    raise Unsupported(f"{what} with the gate on the FFN ranks, which send no logits: start them with --compute-gate-on-attention, or "
                      "switch it off")


def _see_call(_, args, kwargs) -> None:
    if kwargs.get("output_router_logits"):
        _refuse_router_logits("output_router_logits")


def _replace(model: torch.nn.Module, family: Family, client: Client, reply_timeout: float) -> None:
    decoder = getattr(model, model.base_model_prefix, model)
    if any(isinstance(module, RemoteExperts) for module in decoder.modules()):
        raise InvalidArgument("the experts of this model are elsewhere already, and their weights gone: load it anew")
    places = [(number, layer, family.place_of(layer)) for number, layer in enumerate(decoder.layers) if family.place_of(layer)]
    # A drafter's layers, which transformers does not load, may be on the FFN ranks beside the model's.
    remote = [layer for layer in client.settings.moe_layers if layer < client.settings.num_layers]
    here = [number for number, _, _ in places]
    if here != remote:
        raise InvalidArgument(f"MoE layers are {here} here and {remote} on the FFN ranks: load the same model on both sides")
    tokens = TokenIds(decoder)
    if not client.settings.gate_on_client:
        decoder.register_forward_pre_hook(_see_call, with_kwargs=True)
    for number, layer, place in places:
        block = getattr(layer, place)
        remote_block = RemoteExperts(block, client, number, tokens, reply_timeout)
        # Of the block's class too: transformers finds by it where router logits come from.
        remote_block.__class__ = type(f"Remote{type(block).__name__}", (RemoteExperts, type(block)), {})
        setattr(layer, place, remote_block.train(block.training))
