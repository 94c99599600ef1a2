"""A model with its experts elsewhere in use: batches with padding, autocast, several models and threads, and what would go wrong in silence."""

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import weakref

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install './client/python[torch]'")
pytest.importorskip("transformers", reason="transformers is not installed: pip install './client/python[torch]'")

import safetensors.torch  # noqa: E402
import torch  # noqa: E402

import tandem_adapter  # noqa: E402
import tandem_client  # noqa: E402
from tandem_adapter.block import TokenIds  # noqa: E402
from tests.client.conftest import MODELS  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.client.test_adapter import FAMILIES, GATE_HERE, PLAIN, logits_of, plain, prompts  # noqa: E402


def test_the_example_answers(pool):
    """As its first lines say."""
    example = ROOT / "client" / "python" / "examples" / "generate.py"
    asked = "Tom has 3 apples and buys 4 more. How many apples has he?"
    assert asked in example.read_text()
    done = subprocess.run([sys.executable, "-B", example, str(MODELS["arith"]), pool("arith").address, asked], capture_output=True, text=True, timeout=120,
                          check=False, env={**os.environ, "PYTHONPATH": str(ROOT / "client" / "python")})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("#### 7")


def padded(questions, pad):
    """[batch, longest], padded on the left as generate wants it, and the mask."""
    longest = max(len(ids) for ids in questions)
    rows = [[pad] * (longest - len(ids)) + ids for ids in questions]
    return torch.tensor(rows), torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in questions])


@pytest.mark.parametrize("flags", ((), GATE_HERE))
@pytest.mark.parametrize("model", FAMILIES)
def test_a_padded_batch_with_a_cache(model, flags, pool):
    """Prompts of other lengths, generated together: the tokens of plain transformers, step for step."""
    questions = [prompts(model, 1, length)[0].tolist() for length in (21, 3, 70)]
    ids, mask = padded(questions, 0)
    whole = plain(model)
    options = dict(attention_mask=mask, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        wanted = whole.generate(ids, **options)
        with tandem_adapter.attach(whole, pool(model, *PLAIN, *flags).address):
            assert whole.generate(ids, **options).tolist() == wanted.tolist()


@pytest.mark.parametrize("shape", ((1, 1), (5, 1), (1, 64), (3, 65)))
def test_shapes(shape, pool):
    model = plain("deepseek_v3")
    ids = prompts("deepseek_v3", *shape)
    wanted = logits_of(model, ids)
    with tandem_adapter.attach(model, pool("deepseek_v3", *PLAIN).address):
        got = logits_of(model, ids)
    assert got.shape == wanted.shape and (got - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("model", FAMILIES)
def test_autocast(model, pool):
    """Attention in bf16 by autocast, weights in float32: as far from float32 as plain transformers under autocast."""
    ids = prompts(model)
    whole = plain(model)
    reference = logits_of(whole, ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torchs_own = (logits_of(whole, ids) - reference).abs()
        with tandem_adapter.attach(whole, pool(model, *PLAIN, *GATE_HERE).address):
            error = (logits_of(whole, ids) - reference).abs()
    assert 0 < error.median() <= 1.5 * torchs_own.median()


def test_a_layer_may_take_its_time(pool, monkeypatch):
    """What a long prompt may take is the caller's to say, and more than a minute without a word."""
    given = []
    submit = tandem_client.Client.submit
    monkeypatch.setattr(tandem_client.Client, "submit", lambda *words, timeout, **more: given.append(timeout) or submit(*words, timeout=timeout, **more))
    address = pool("mixtral", *PLAIN).address
    for options in ({}, {"reply_timeout": 1234.0}):
        model = plain("mixtral")
        with tandem_adapter.attach(model, address, **options):
            logits_of(model, prompts("mixtral"))
    assert given == [600.0] * 3 + [1234.0] * 3


def test_several_models_share_a_client(pool):
    """One after the other and at once."""
    ids = prompts("qwen3_moe")
    one, two = plain("qwen3_moe"), plain("qwen3_moe")
    with torch.no_grad():
        two.model.embed_tokens.weight *= 1.5
    wanted = [logits_of(model, ids) for model in (one, two)]
    assert (wanted[0] - wanted[1]).abs().max() > 1e-2
    with tandem_adapter.attach(one, pool("qwen3_moe", *PLAIN, *GATE_HERE).address) as client:
        assert tandem_adapter.attach(two, client) is client
        got = [None, None]
        threads = [threading.Thread(target=lambda i=i, model=model: got.__setitem__(i, logits_of(model, ids))) for i, model in enumerate((one, two))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i in range(2):
            assert (got[i] - wanted[i]).abs().max() < 1e-4 * wanted[i].abs().max()


def test_a_step_has_the_tokens_of_its_own_thread():
    """One model in two threads: each sees its own input_ids, whatever the other began meanwhile."""
    class Decoder(torch.nn.Module):
        def forward(self, input_ids):
            both_began.wait(60)
            return tokens.of(torch.zeros(*input_ids.shape, 8)).tolist()

    both_began, decoder, seen = threading.Barrier(2), Decoder(), {}
    tokens = TokenIds(decoder)
    asked = {"a": [[1, 2, 3]], "b": [[7, 8, 9]]}
    threads = [threading.Thread(target=lambda name=name: seen.__setitem__(name, decoder(input_ids=torch.tensor(asked[name])))) for name in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"a": [1, 2, 3], "b": [7, 8, 9]}


def test_a_second_attach_is_refused_by_name(pool):
    model = plain("mixtral")
    with tandem_adapter.attach(model, pool("mixtral").address) as client:
        with pytest.raises(tandem_client.InvalidArgument, match="the experts of this model are elsewhere already, and their weights gone: load it anew"):
            tandem_adapter.attach(model, client)


def test_a_gate_that_is_trained_is_not_left_out_in_silence(pool):
    """All else is frozen, so that the rows themselves want no gradient."""
    model = plain("mixtral").requires_grad_(False)
    model.model.layers[0].get_submodule("block_sparse_moe" if hasattr(model.model.layers[0], "block_sparse_moe") else "mlp").gate.requires_grad_(True)
    with tandem_adapter.attach(model, pool("mixtral", *GATE_HERE).address):
        with pytest.raises(tandem_client.InvalidArgument, match="give no gradient"):
            model(prompts("mixtral"))
        with torch.no_grad():
            model(prompts("mixtral"))


@pytest.mark.parametrize("model", ("qwen3_moe", "mixtral"))
def test_router_logits_of_a_remote_gate_are_refused_at_a_call(model, pool):
    ids, whole = prompts(model), plain(model)
    with tandem_adapter.attach(whole, pool(model, *PLAIN).address), torch.no_grad():
        with pytest.raises(tandem_client.Unsupported, match="^output_router_logits with the gate on the FFN ranks, which send no logits"):
            whole(ids, output_router_logits=True)
        whole(ids)


def test_shared_experts_of_another_size_are_named(pool):
    model = plain("deepseek_v3")
    model.config.n_shared_experts = 3
    with pytest.raises(tandem_client.InvalidArgument, match="shared_intermediate_size is 48 on .* and .* on "):
        tandem_adapter.attach(model, pool("deepseek_v3").address)


def test_the_selection_bias_keeps_its_bits(pool):
    """In a model of bf16 too: biases that differ less than bf16 tells apart choose other experts."""
    loaded, client = tandem_adapter.load(MODELS["deepseek_v3"], pool("deepseek_v3", *GATE_HERE).address, dtype=torch.bfloat16)
    client.close()
    biases = {name: buffer for name, buffer in loaded.named_buffers() if name.endswith("e_score_correction_bias")}
    assert len(biases) == 2
    for path in MODELS["deepseek_v3"].glob("*.safetensors"):
        with safetensors.safe_open(path, "pt") as file:
            for name in set(biases) & set(file.keys()):
                stored = file.get_tensor(name)
                assert stored.dtype == biases[name].dtype == torch.float32 and torch.equal(biases.pop(name), stored)
    assert not biases


def test_embeddings_that_are_the_head_too(own_pool, tmp_path, monkeypatch):
    """A folder without lm_head, as models with tied embeddings have it."""
    folder = tmp_path / "tied"
    shutil.copytree(MODELS["qwen3_moe"], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    monkeypatch.setitem(MODELS, "tied", folder)
    ids = prompts("tied")
    wanted = logits_of(plain("tied"), ids)
    loaded, client = tandem_adapter.load(folder, own_pool("tied", *PLAIN).address, dtype=torch.float32)
    with client:
        assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
        assert (logits_of(loaded, ids) - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_attach_frees_the_experts(pool):
    model = plain("qwen3_moe")
    experts = [weakref.ref(parameter) for name, parameter in model.named_parameters() if ".experts." in name]
    assert experts
    with tandem_adapter.attach(model, pool("qwen3_moe").address):
        gc.collect()
        assert not any(expert() is not None for expert in experts)
