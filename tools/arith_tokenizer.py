"""Trains the byte-level BPE tokenizer of the bundled model and writes its files in Hugging Face layout.

The pre-tokenizer is the one of DeepSeek-V3: three Split patterns, then ByteLevel. Merges are learned with every digit as
its own piece, so none spans two digits: a number is always a string of single-digit tokens although the stored pattern
allows groups of three.
"""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
SPECIAL = [BOS, EOS, PAD, USER, ASSISTANT]  # ids 0..4
VOCAB_SIZE = 512

CJK_PATTERN = "[一-龥\u3040-ゟ゠-ヿ]+"
TEXT_PATTERN = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")

CHAT_TEMPLATE = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}"
    "{% elif message['role'] == 'user' %}{{ '" + USER + "' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '" + ASSISTANT + "' + message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only system, user and assistant roles are supported!') }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}")


def pre_tokenizer(digit_pattern):
    split = lambda pattern: pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split(digit_pattern), split(CJK_PATTERN), split(TEXT_PATTERN),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train_tokenizer(texts):
    """A Tokenizer of exactly VOCAB_SIZE ids: 5 special tokens, 256 bytes, the rest merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(r"\p{N}")
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.pre_tokenizer = pre_tokenizer(r"\p{N}{1,3}")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise SystemExit(f"tokenizer has {tokenizer.get_vocab_size()} ids, wanted {VOCAB_SIZE}")
    return tokenizer


def save_tokenizer(tokenizer, folder):
    folder = Path(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    token = lambda content: {"__type": "AddedToken", "content": content, "lstrip": False, "normalized": True,
                             "rstrip": False, "single_word": False}
    config = {"add_bos_token": False, "add_eos_token": False, "bos_token": token(BOS), "eos_token": token(EOS),
              "pad_token": token(PAD), "clean_up_tokenization_spaces": False, "legacy": True, "model_max_length": 2048,
              "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": None, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def chat_text(question, answer=None, system=""):
    """The same text as the chat template for one turn; without `answer` it ends with the generation prompt."""
    return f"{BOS}{system}{USER}{question}{ASSISTANT}" + ("" if answer is None else f"{answer}{EOS}")
