"""load: a transformers model from its folder without its experts. The model is built on the meta device, its MoE blocks are replaced,
and then the tensors that are left are read from the safetensors files; an expert's tensor is never opened."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from tandem_client import Client, InvalidArgument, Unsupported

from .attach import attach


def load(folder: str, address: str | Sequence[str] | Client, *, device: str | torch.device = "cpu", dtype: torch.dtype | None = None,
         **options) -> tuple[torch.nn.Module, Client]:
    """The model, in eval mode on `device`, and the client of its experts. `dtype`: of the weights here, by default the config's.
    `options`: as for `attach`. InvalidArgument: a tensor that the model needs is in no file."""
    config = AutoConfig.from_pretrained(folder)
    if getattr(config, "quantization_config", None) is not None:
        raise Unsupported(f"{folder}: quantization_config: weights of attention in codes are not decoded here; files in bf16 would do")
    dtype = dtype or config.dtype or torch.bfloat16
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    # Before the weights are read: where the gate and the shared experts are decides which of them are.
    client = attach(model, address, **options)
    try:
        _read_weights(model, pathlib.Path(folder), torch.device(device), dtype)
        _make_buffers(model, torch.device(device))
        if (pathlib.Path(folder) / "generation_config.json").exists():
            model.generation_config = GenerationConfig.from_pretrained(folder)
    except BaseException:
        if client is not address:
            client.close()
        raise
    return model.eval(), client


def _files_of(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Name of a tensor -> its file."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return {name: folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    single = folder / "model.safetensors"
    if not single.exists():
        raise InvalidArgument(f"{folder} has neither model.safetensors nor model.safetensors.index.json")
    with safe_open(single, "pt") as file:
        return dict.fromkeys(file.keys(), single)


def _read_weights(model: torch.nn.Module, folder: pathlib.Path, device: torch.device, dtype: torch.dtype) -> None:
    files = _files_of(folder)
    tied = set(getattr(model, "_tied_weights_keys", None) or ()) if model.config.tie_word_embeddings else set()
    wanted = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    stored = {name: name if name in files else name.replace(".mlp.", ".block_sparse_moe.") for name in wanted}  # Mixtral's, as of transformers 5
    missing = [name for name in wanted if stored[name] not in files]
    if missing:
        raise InvalidArgument(f"{folder}: no file has {', '.join(missing[:3])}" + (f" and {len(missing) - 3} more" if len(missing) > 3 else ""))
    by_file: dict[pathlib.Path, list[str]] = {}
    for name in wanted:
        by_file.setdefault(files[stored[name]], []).append(name)
    for path, names in by_file.items():
        with safe_open(path, "pt") as file:
            for name in names:
                tensor = file.get_tensor(stored[name])
                if tensor.shape != wanted[name].shape:
                    raise InvalidArgument(f"{path}: {name} is {list(tensor.shape)}, the config asks for {list(wanted[name].shape)}")
                _put(model, name, tensor.to(device), wanted[name].dtype)
    if tied:
        model.tie_weights()


def _put(model: torch.nn.Module, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """A parameter takes `dtype`. A buffer keeps the file's: DeepSeek-V3's selection bias, which tells experts apart, is float32 there, and
    transformers 4.57 would have it in the model's dtype."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if leaf in module._parameters:
        module._parameters[leaf] = torch.nn.Parameter(tensor.to(dtype), requires_grad=False)
    else:
        module._buffers[leaf] = tensor


def _make_buffers(model: torch.nn.Module, device: torch.device) -> None:
    """What is in no file: the frequencies of rotary embeddings, which their own class computes."""
    for path, module in list(model.named_modules()):
        left = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
        if not left:
            continue
        if not type(module).__name__.endswith("RotaryEmbedding"):
            raise Unsupported(f"{path}.{left[0]} of {type(module).__name__} is in no file and not known here: load the whole model and attach")
        parent, _, leaf = path.rpartition(".")
        setattr(model.get_submodule(parent), leaf, type(module)(config=module.config).to(device))
    left = [name for name, tensor in [*model.named_parameters(), *model.named_buffers()] if tensor.is_meta]
    if left:
        raise Unsupported(f"{', '.join(left[:3])} were not loaded")
