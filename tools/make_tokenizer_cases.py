#!/usr/bin/env python3
"""Makes tokenizers with the pre-tokenizers that Tandem reads, and cases of what the `tokenizers` package does with them.

For each name below: trains a small vocabulary on generated text, writes OUT/NAME/tokenizer.json, and OUT/NAME/cases.tsv with
COUNT random strings: hex of the text, ids, hex of the decoded ids. `build/tokenizer_cases OUT/NAME/tokenizer.json
OUT/NAME/cases.tsv` compares. The committed sample under tests/fixtures/tokenizer is `--count 110`; a change of the
tokenizer is to be checked with `--count 100000`.

usage: pip install tokenizers; python tools/make_tokenizer_cases.py [--out DIR] [--count N] [--seed N] [NAME ...]
       python tools/make_tokenizer_cases.py --tokenizer FILE --out DIR ...     (cases for a tokenizer.json as it stands)
"""

import argparse
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
V3 = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]
# The letters that DeepSeek's first tokenizer lists one range after another: first, last.
V2_LETTERS = """41 5A 61 7A B5 B5 C0 D6 D8 F6 F8 1BA 1BC 1BF 1C4 293 295 2AF 370 373 376 377 37B 37D 37F 37F 386 386 388 38A
38C 38C 38E 3A1 3A3 3F5 3F7 481 48A 52F 531 556 10A0 10C5 13A0 13F5 13F8 13FD 1C90 1CBA 1CBD 1CBF 1D00 1D2B 1D6B 1D77 1D79
1D9A 1E00 1F15 1F18 1F1D 1F20 1F45 1F48 1F4D 1F50 1F57 1F59 1F59 1F5B 1F5B 1F5D 1F5D 1F5F 1F7D 1F80 1FB4 1FB6 1FBC 1FBE 1FBE
1FC2 1FC4 1FC6 1FCC 1FD0 1FD3 1FD6 1FDB 1FE0 1FEC 1FF2 1FF4 1FF6 1FFC 2102 2102 2107 2107 210A 2113 2115 2115 2119 211D 2124
2124 2126 2126 2128 2128 212A 212D 212F 2134 2139 2139 213C 213F 2145 2149 214E 214E 2183 2184 2C00 2C7B 2C7E 2CE4 2CEB 2CEE
2CF2 2CF3 A640 A66D A680 A69B A722 A76F A771 A787 A78B A78E AB70 ABBF FB00 FB06 FB13 FB17 FF21 FF3A FF41 FF5A 10400 1044F
104B0 104D3 104D8 104FB 10C80 10CB2 10CC0 10CF2 118A0 118DF 1E900 1E943""".split()
V2 = [
    "[\r\n]",
    r"\s?[%s]+" % "".join(chr(int(a, 16)) + "-" + chr(int(b, 16)) for a, b in zip(V2_LETTERS[::2], V2_LETTERS[1::2])),
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
]

TEXT = """The quick brown fox jumps over the lazy dog. She sells sea shells; they're hers, isn't it? I'll go, we've been, I'd say.
A farm has 12 cows and 345 hens, each cow costs $1,999.50, how many legs are there in total? #### 1428
def main(argc, argv):\n    for i in range(10):\n        if i % 2 == 0 and not x[i]:\n            print("value: %d" % i)\n    return 0
Der Fluß fließt über die Brücke; größer, schöner, höher. L'été dernier, où êtes-vous allés ? Año nuevo, ¿qué pasó mañana?
Привет, мир! Как дела сегодня? Съешь же ещё этих мягких французских булок. Καλημέρα κόσμε, τι κάνεις;
今天天气很好，我们去公园散步。人工智能的发展非常快。東京は日本の首都です。カタカナとひらがな。안녕하세요 세계, 삼겹살을 먹었다.
مرحبا بالعالم ، كيف حالك؟ שלום עולם. नमस्ते दुनिया, आप कैसे हैं? สวัสดีชาวโลก Xin chào thế giới, tiếng Việt.
{"name": "tool", "arguments": {"x": 1.5, "y": [true, null]}} <a href="https://example.org/?q=1&r=2">link</a> 👩‍👩‍👧 🎉🎉 ½¾ ⅷ ²³
"""
WORDS = TEXT.split()
SPACES = ["\t", "\n", "\r", "\r\n", "\x0b", "\x0c", " ", "  ", "   ", "\x85", "\xa0", "\u1680", "\u2002", "\u2028", "\u2029", "\u202f", "\u205f",
          "\u3000", "\n\n", " \n", "\n ", "      "]
NOT_SPACES = ["\u180e", "\u200b", "\u200d", "\u2060", "\ufeff", "\x1c", "\x1d", "\x1e", "\x1f", "\x00", "\xad"]
QUOTED = ["'s", "'S", "'ſ", "'t", "'T", "'re", "'Re", "'rE", "'VE", "'m", "'ll", "'LL", "'d", "'D", "'", "''", "\u2019s"]
MARKS = ["\u0300", "\u0301", "\u0316", "\u0334", "\u0345", "\u0338", "\u05b0", "\u0651", "\u093c", "\u3099", "\u20dd", "\u0897", "\u1ac0",
         "\U0001e4ec", "\u11a8", "\u1161", "\u1100", "\u09be"]
NUMBERS = ["0", "7", "12", "123", "1234", "12345", "1234567890", "½", "¾", "²", "Ⅷ", "٣", "०१२३", "一二", "𝟘𝟙𝟚𝟛", "㉑"]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "->", "!=", "//", "¡", "¿", "€", "±", "§", "«", "，", "。", "—", "…", "♥", "→"]
LETTERS = list("aAbBzZ") + ["é", "É", "ß", "ẞ", "ſ", "K", "ﬀ", "ǅ", "ʰ", "ª", "я", "Я", "ξ", "ა", "Ა", "ב", "ع", "क", "ก", "あ", "ア", "ー", "一",
                            "龥", "龦", "가", "힣", "ힰ", "𝒜", "𐐀", "𐐨", "ꬰ", "𞤀", "e\u0301", "≠", "가"]


def random_text(rng, extra):
    pools = [WORDS, SPACES, NOT_SPACES, QUOTED, MARKS, NUMBERS, PUNCTUATION, LETTERS] + ([extra] if extra else [])
    kind = rng.random()
    if kind < 0.15:  # every plane alike
        return "".join(random_character(rng, 0x10FFFF) for _ in range(rng.randint(1, 24)))
    if kind < 0.25:
        return "".join(random_character(rng, 0x2FFF) for _ in range(rng.randint(1, 24)))
    if kind < 0.40:
        return "".join(chr(rng.choice([9, 10, 13, *range(32, 127)])) for _ in range(rng.randint(1, 40)))
    if kind < 0.55:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 8)))
    if kind < 0.60:  # one long piece
        return rng.choice(rng.choice(pools)) * rng.randint(30, 120) + rng.choice(rng.choice(pools))
    parts = []
    for _ in range(rng.randint(1, 16)):
        parts.append(random_character(rng, 0x10FFFF) if rng.random() < 0.05 else rng.choice(rng.choice(pools)))
    return "".join(parts)


def random_character(rng, top):
    while True:
        c = rng.randint(0, top)
        if not 0xD800 <= c <= 0xDFFF:
            return chr(c)


def corpus(rng):
    yield from TEXT.splitlines()
    for _ in range(3000):
        yield " ".join(rng.choice(WORDS) for _ in range(10))
    for _ in range(1500):
        yield random_text(rng, None)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(use_regex=False, prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)


def train(rng, pre_tokenizer, size=520, normalizer=None, added=(), post=None, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[]
    )
    tokenizer.train_from_iterator(list(corpus(rng)), trainer)
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    if post is not None:
        tokenizer.post_processor = post(tokenizer)
    return tokenizer


def sentencepiece(rng, metaspace):
    specials = ["<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=600, show_progress=False, limit_alphabet=120, max_token_length=12,
        special_tokens=specials + ["<0x%02X>" % b for b in range(256)],
    )  # fmt: skip
    tokenizer.train_from_iterator([word for line in corpus(rng) for word in line.split()], trainer)
    # The trainer's special tokens became added tokens; only three of them are.
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] in specials]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.post_processor = bos_template("<s>")(tokenizer)
    return tokenizer


def bos_template(bos):
    return lambda t: processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, t.token_to_id(bos))])


def special(text, **options):
    return AddedToken(text, special=True, normalized=False, **options)


CHATML = [special("<|im_start|>"), special("<|im_end|>"), AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)]
DEEPSEEK = [
    special("<｜begin▁of▁sentence｜>"),
    special("<｜end▁of▁sentence｜>"),
    AddedToken("<｜User｜>"),
    AddedToken("<｜Assistant｜>"),
    AddedToken("<think>"),
]
DEEPSEEK_V4 = DEEPSEEK + [
    AddedToken("</think>"),
    AddedToken("｜DSML｜"),
    AddedToken("<｜latest_reminder｜>"),
    AddedToken("<｜action｜>"),
    AddedToken("<dsml:"),
    AddedToken("</dsml:"),
    AddedToken("<｜end_of_query｜>", special=True, normalized=False),
]
MIXED = [
    special("<pad>", lstrip=True),
    special("<eot>", rstrip=True),
    special("<mask>", lstrip=True, rstrip=True),
    special("<mask>x"),
    AddedToken("word", single_word=True),
    AddedToken("wordy", single_word=True, lstrip=True),
    AddedToken("  ", normalized=False),
    AddedToken("    ", normalized=False),
    AddedToken("é"),
    AddedToken("tion"),
]
V3_STEPS = pre_tokenizers.Sequence([split(p) for p in V3] + [byte_level()])
V2_STEPS = pre_tokenizers.Sequence(
    [split(p) for p in V2] + [pre_tokenizers.Digits(individual_digits=True), byte_level()]
)

MAKERS = {
    "gpt2": lambda rng: train(rng, byte_level(use_regex=True)),
    "llama3": lambda rng: train(
        rng,
        pre_tokenizers.Sequence([split(LLAMA3), byte_level()]),
        added=[special("<|begin_of_text|>"), special("<|eot_id|>")],
        ignore_merges=True,
        post=lambda t: processors.Sequence([processors.ByteLevel(), bos_template("<|begin_of_text|>")(t)]),
    ),
    "qwen2": lambda rng: train(
        rng, pre_tokenizers.Sequence([split(QWEN), byte_level()]), normalizer=normalizers.NFC(), added=CHATML
    ),
    "deepseek_v2": lambda rng: train(rng, V2_STEPS, added=DEEPSEEK, post=bos_template("<｜begin▁of▁sentence｜>")),
    "deepseek_v3": lambda rng: train(rng, V3_STEPS, normalizer=normalizers.Sequence([]), added=DEEPSEEK),
    "deepseek_v4": lambda rng: train(rng, V3_STEPS, normalizer=normalizers.Sequence([]), added=DEEPSEEK_V4),
    "gpt_oss": lambda rng: train(rng, pre_tokenizers.Sequence([split(O200K), byte_level()]), added=[special("<|start|>")]),
    "added": lambda rng: train(
        rng, byte_level(use_regex=True, prefix=True), size=400, normalizer=normalizers.NFC(), added=MIXED
    ),
    "behaviors": lambda rng: train(
        rng,
        pre_tokenizers.Sequence(
            [
                split(r"[.;]", "merged_with_previous"),
                split(r"[(<]", "merged_with_next"),
                split(r"[a-z]", "contiguous"),
                split(r"[^#]+", "isolated", invert=True),
                split(r"~", "removed"),
                pre_tokenizers.Digits(individual_digits=False),
                byte_level(prefix=True),
            ]
        ),
        size=400,
    ),
    "mixtral": lambda rng: sentencepiece(rng, metaspace=False),
    "mixtral_metaspace": lambda rng: sentencepiece(rng, metaspace=True),
}


def write_cases(path, tokenizer, count, rng):
    extra = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    extra = extra + [t[:-1] for t in extra if len(t) > 1] + [" " + t + " " for t in extra]
    with open(path, "w", encoding="ascii") as out:
        for _ in range(count):
            text = random_text(rng, extra)
            ids = tokenizer.encode(text).ids
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            out.write("%s\t%s\t%s\n" % (text.encode().hex(), " ".join(map(str, ids)), decoded.encode().hex()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[], metavar="NAME", help=" ".join(MAKERS))
    parser.add_argument("--out", default="tests/fixtures/tokenizer")
    parser.add_argument("--count", type=int, default=110)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer", help="a tokenizer.json to make cases for, instead of training")
    args = parser.parse_args()
    for name in args.names or ([] if args.tokenizer else MAKERS):
        folder = os.path.join(args.out, name)
        os.makedirs(folder, exist_ok=True)
        rng = random.Random(f"{args.seed} {name}")
        tokenizer = MAKERS[name](rng)
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as out:
            json.dump(json.loads(tokenizer.to_str()), out, ensure_ascii=False, separators=(",", ":"))
            out.write("\n")
        write_cases(os.path.join(folder, "cases.tsv"), tokenizer, args.count, rng)
        print(f"{name}: {tokenizer.get_vocab_size()} tokens, {args.count} cases")
    if args.tokenizer:
        os.makedirs(args.out, exist_ok=True)
        rng = random.Random(args.seed)
        write_cases(os.path.join(args.out, "cases.tsv"), Tokenizer.from_file(args.tokenizer), args.count, rng)


if __name__ == "__main__":
    main()
