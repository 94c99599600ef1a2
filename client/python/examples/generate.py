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
    chat = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True).to(device)
    answer = model.generate(prompt["input_ids"], attention_mask=prompt["attention_mask"], max_new_tokens=128, do_sample=False)
print(tokenizer.decode(answer[0, prompt["input_ids"].shape[1]:], skip_special_tokens=True))
