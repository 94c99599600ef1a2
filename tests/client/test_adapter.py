"""transformers with its experts elsewhere: the logits of plain transformers, and the tokens of Tandem itself."""

import concurrent.futures
import json
import signal
import subprocess
import time

import pytest

from tests.conftest import BINARY, TandemServer
from tests.client.conftest import MODELS, free_port

torch = pytest.importorskip("torch", reason="torch is not installed: pip install './client/python[torch]'")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install './client/python[torch]'")
pytest.importorskip("safetensors")

import tandem_client  # noqa: E402
import tandem_adapter  # noqa: E402

torch.set_num_threads(1)  # tiny models: a second thread would only wait for the first

FAMILIES = ("deepseek_v2_lite", "deepseek_v3", "qwen3_moe", "mixtral")
GATE_HERE = ("--compute-gate-on-attention",)
PLACEMENTS = {
    "gate and shared experts elsewhere": (),
    "gate here, shared experts elsewhere": (*GATE_HERE, "--compute-shared-experts-on-attention=false"),
    "gate elsewhere, shared experts here": ("--compute-shared-experts-on-attention=true",),
    "gate and shared experts here": GATE_HERE,
}
PLAIN = ("--compute-dtype", "float32")
# A bf16 row, three layers: attention's and the experts' roundings of 2^-9 each, in logits of size 1 to 4.
BF16_BOUND = 0.06


def plain(model, dtype=torch.float32):
    return transformers.AutoModelForCausalLM.from_pretrained(MODELS[model], torch_dtype=dtype).eval()


def prompts(model, count=2, length=33):
    vocab = json.loads((MODELS[model] / "config.json").read_text())["vocab_size"]
    return torch.randint(0, vocab, (count, length), generator=torch.Generator().manual_seed(5))


def logits_of(model, ids):
    with torch.inference_mode():
        return model(ids).logits.float()


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("model", FAMILIES)
def test_logits_in_float32(model, placement, pool):
    """The same numbers but for the order of sums, whoever routes."""
    ids = prompts(model)
    wanted = logits_of(plain(model), ids)
    loaded, client = tandem_adapter.load(MODELS[model], pool(model, *PLAIN, *PLACEMENTS[placement]).address, dtype=torch.float32)
    with client:
        got = logits_of(loaded, ids)
    assert (got - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("model", FAMILIES)
def test_logits_in_bf16(model, pool):
    ids = prompts(model)
    reference = logits_of(plain(model), ids)
    torchs_own = (logits_of(plain(model, torch.bfloat16), ids) - reference).abs()
    loaded, client = tandem_adapter.load(MODELS[model], pool(model, *GATE_HERE).address)
    with client:
        assert loaded.dtype == torch.bfloat16
        error = (logits_of(loaded, ids) - reference).abs()
    # Rare: a row whose two best routings are closer than bf16 tells apart. So most, not all, and nothing more often than in plain torch.
    assert error.median() <= 1.5 * torchs_own.median() and error.quantile(0.95) <= 1.5 * torchs_own.quantile(0.95) + 1e-3
    assert error.median() < BF16_BOUND * reference.abs().max()


def own_tokens(prompt_ids, directory, *flags):
    file = directory / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in prompt_ids))
    done = subprocess.run([BINARY, "generate", "--model", str(MODELS["arith"]), "--prompts-file", str(file), "--json", "--max-tokens", "64", "--temperature",
                           "0", "--log-level", "warning", *flags], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = [answer["tokens"] for answer in json.loads(done.stdout)["answers"]]
    return [tokens[:-1] if tokens[-1] == 1 else tokens for tokens in answers]  # whether the end is told or not


def questions(count):
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS["arith"])
    lines = (MODELS["arith"] / "heldout.jsonl").read_text().splitlines()[:count]
    return chats(tokenizer, [json.loads(line)["question"] for line in lines])


def chats(tokenizer, asked):
    """Token ids of each question as the chat template puts it."""
    return [tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, tokenize=True, return_dict=False)
            for question in asked]


def generated(model, prompt, most=64):
    with torch.inference_mode():
        out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), max_new_tokens=most, do_sample=False)
    tokens = out[0, len(prompt):].tolist()
    return tokens[:-1] if tokens[-1] == model.config.eos_token_id else tokens


@pytest.mark.parametrize("flags,dtype,count", (((), torch.float32, 6), (GATE_HERE, torch.float32, 6), (GATE_HERE, torch.bfloat16, 6)))
def test_the_bundled_model_generates_tandems_own_tokens(flags, dtype, count, pool, tmp_path):
    compute = () if dtype == torch.bfloat16 else PLAIN
    asked = questions(count)
    wanted = own_tokens(asked, tmp_path, *compute)
    model, client = tandem_adapter.load(MODELS["arith"], pool("arith", *compute, *flags).address, dtype=dtype)
    with client:
        assert [generated(model, prompt) for prompt in asked] == wanted


def test_a_tandem_worker_and_transformers_share_a_pool(pool, tmp_path):
    """At the same time, over one pool: the same answers."""
    shared = pool("arith")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS["arith"])
    asked = [json.loads(line)["question"] for line in (MODELS["arith"] / "heldout.jsonl").read_text().splitlines()[10:13]]
    worker = TandemServer(["attention", "--model", str(MODELS["arith"]), "--ffn", shared.address, "--port", "0", "--threads", "1"], tmp_path)
    try:
        worker.wait_ready()

        def ask(question):
            body = {"model": "arith", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 64}
            return worker.request("POST", "/v1/chat/completions", body).json()["choices"][0]["message"]["content"]

        model, client = tandem_adapter.load(MODELS["arith"], shared.address)
        with client, concurrent.futures.ThreadPoolExecutor(3) as threads:
            theirs = [threads.submit(ask, question) for question in asked]
            ours = [tokenizer.decode(generated(model, prompt), skip_special_tokens=True) for prompt in chats(tokenizer, asked)]
            assert ours == [answer.result() for answer in theirs]
        assert all("####" in answer for answer in ours)
    finally:
        worker.stop()


def test_several_ranks(pool):
    ids = prompts("arith", length=70)
    wanted = logits_of(plain("arith"), ids)
    ranks = pool("arith", *PLAIN, "--connector", "m2n", *GATE_HERE, ranks=2)
    model, client = tandem_adapter.load(MODELS["arith"], ranks.addresses, dtype=torch.float32)
    with client:
        assert (logits_of(model, ids) - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("model", FAMILIES)
def test_no_weight_of_an_expert_is_here(model, pool, monkeypatch):
    """Not in the model, and never read: the files' tensors of experts are not opened."""
    opened = []
    original = tandem_adapter.loading.safe_open

    class Watched:
        def __init__(self, *arguments):
            self.file = original(*arguments)

        def __enter__(self):
            entered = self.file.__enter__()

            class File:
                keys = staticmethod(entered.keys)

                @staticmethod
                def get_tensor(name):
                    opened.append(name)
                    return entered.get_tensor(name)

            return File()

        def __exit__(self, *arguments):
            return self.file.__exit__(*arguments)

    monkeypatch.setattr(tandem_adapter.loading, "safe_open", Watched)
    loaded, client = tandem_adapter.load(MODELS[model], pool(model).address)
    client.close()
    whole = plain(model)
    expected = {name for name, _ in whole.named_parameters()} | {name for name, _ in whole.named_buffers() if "inv_freq" not in name}
    gone = {name for name in expected if ".experts." in name or ".gate." in name or ".shared_experts." in name}
    assert any(".experts." in name for name in gone)
    assert set(loaded.state_dict()) == set(opened) == expected - gone, "the gate and the shared experts are elsewhere as well"
    assert not any(tensor.is_meta for tensor in [*loaded.parameters(), *loaded.buffers()])


def test_attach_takes_the_experts_out(pool):
    model = plain("qwen3_moe")
    ids = prompts("qwen3_moe")
    wanted = logits_of(model, ids)
    before = sum(p.numel() for p in model.parameters())
    with tandem_adapter.attach(model, pool("qwen3_moe", *PLAIN, *GATE_HERE).address):
        assert sum(p.numel() for p in model.parameters()) == before - 2 * 8 * 3 * 32 * 64
        assert "layer=0, 8 experts elsewhere" in repr(model)
        assert (logits_of(model, ids) - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_router_logits(pool):
    """Where the gate is here the model's own outputs keep them; elsewhere they are refused."""
    model = plain("mixtral")
    ids = prompts("mixtral")
    with torch.inference_mode():
        wanted = model(ids, output_router_logits=True).router_logits
    with tandem_adapter.attach(model, pool("mixtral", *PLAIN, *GATE_HERE).address), torch.inference_mode():
        got = model(ids, output_router_logits=True).router_logits
        assert len(got) == len(wanted) == 3 and all(torch.allclose(a, b, atol=1e-4) for a, b in zip(got, wanted, strict=True))
    model = plain("mixtral")
    model.config.output_router_logits = True
    with pytest.raises(tandem_client.Unsupported, match="output_router_logits with the gate on the FFN ranks"):
        tandem_adapter.attach(model, pool("mixtral", *PLAIN).address)


def test_token_ids(pool):
    model = plain("mixtral")
    ids = prompts("mixtral")
    wanted = logits_of(model, ids)
    with tandem_adapter.attach(model, pool("mixtral", *PLAIN, "--send-token-ids").address), torch.inference_mode():
        assert (logits_of(model, ids) - wanted).abs().max() < 1e-4 * wanted.abs().max()
        with pytest.raises(tandem_client.InvalidArgument, match="call the model with input_ids, not inputs_embeds"):
            model(inputs_embeds=torch.zeros(1, 4, 48))


def test_a_lost_session_is_no_lost_answer(own_pool):
    """The pool ends while it has rows, and is started anew: they are sent again."""
    port = free_port()
    first = own_pool("qwen3_moe", *PLAIN, port=port)
    model = plain("qwen3_moe")
    ids = prompts("qwen3_moe")
    with tandem_adapter.attach(model, first.address) as client, concurrent.futures.ThreadPoolExecutor(1) as thread:
        before = logits_of(model, ids)
        first.signal(signal.SIGSTOP)
        again = thread.submit(logits_of, model, ids)
        while not client._ranks[0]._session._waiting:
            time.sleep(0.001)
        first.signal(signal.SIGKILL)
        first.processes[0].wait()
        own_pool("qwen3_moe", *PLAIN, port=port)
        assert (again.result() == before).all()


def test_other_models_are_refused_by_name(pool):
    config = transformers.LlamaConfig(hidden_size=48, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=96)
    with pytest.raises(tandem_client.Unsupported, match="LlamaForCausalLM is not a model whose experts can be elsewhere: DeepseekV2, DeepseekV3, Qwen3Moe"):
        tandem_adapter.attach(transformers.LlamaForCausalLM(config), "127.0.0.1:1")
    with pytest.raises(tandem_client.InvalidArgument, match=r"hidden_size is 64 on .* and 48 on .*num_layers|hidden_size is 64 on .* and 48 on"):
        tandem_adapter.attach(plain("qwen3_moe"), pool("mixtral").address)
    with pytest.raises(tandem_client.Unsupported, match="the FFN ranks route balanced, for benchmarks only"):
        tandem_adapter.attach(plain("mixtral"), pool("mixtral", "--balanced-routing").address)


def test_no_gradient_is_lost_in_silence(pool):
    model = plain("mixtral")
    with tandem_adapter.attach(model, pool("mixtral").address), pytest.raises(tandem_client.InvalidArgument, match="give no gradient: run the model under"):
        model(prompts("mixtral"))


def test_codes_are_refused_by_name(tmp_path):
    config = {**json.loads((MODELS["deepseek_v3"] / "config.json").read_text()), "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(tandem_client.Unsupported, match="quantization_config: weights of attention in codes"):
        tandem_adapter.load(tmp_path, "127.0.0.1:1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_on_a_gpu(pool):
    ids = prompts("qwen3_moe")
    wanted = logits_of(plain("qwen3_moe"), ids)
    model, client = tandem_adapter.load(MODELS["qwen3_moe"], pool("qwen3_moe", *PLAIN, *GATE_HERE).address, dtype=torch.float32, device="cuda")
    with client:
        assert (logits_of(model, ids.cuda()).cpu() - wanted).abs().max() < 1e-3 * wanted.abs().max()
