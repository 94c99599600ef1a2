"""Attention in torch, experts in an FFN pool. Start the pool first:  tandem ffn --model models/arith --listen tcp://127.0.0.1:7000

    python client/python/examples/generate.py models/arith tcp://127.0.0.1:7000 "Tom has 3 apples and buys 4 more. How many apples has he?"
"""
import sys

import torch
from transformers import AutoTokenizer

import tandem_adapter

folder, address, question = sys.argv[1:]
device = "cuda" if torch.cuda.is_available() else "cpu"
tokenizer = AutoTokenizer.from_pretrained(folder)
model, experts = tandem_adapter.load(folder, address, device=device)  # no weight of an expert is read
with experts, torch.inference_mode():
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt").to(device)
    answer = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=128, do_sample=False)
print(tokenizer.decode(answer[0, prompt.shape[1]:], skip_special_tokens=True))
