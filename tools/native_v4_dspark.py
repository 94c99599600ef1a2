"""DSpark's draft step in numpy: what the drafter of a DeepSeek-V4 release proposes behind a position, from the files alone.

It reads the outputs of a few of the model's layers ("taps"): of each the mean over the streams. Each of its stages is a block of the
model's kind that attends to a window of keys made from the taps of past tokens, and to the rows of its own block in both directions."""

import dataclasses

import numpy as np

from native_v4_reference import norm, sigmoid


@dataclasses.dataclass
class Draft:
    ids: np.ndarray         # [block]: the best token of each row
    logits: np.ndarray      # [block, vocabulary]
    base: np.ndarray        # [block, vocabulary]: without the Markov head, which knows the token before
    confidence: np.ndarray  # [block]: probability that the row's token is accepted


class Dspark:
    def __init__(self, model):
        self.model, c = model, model.config
        self.block_size, self.noise = c["dspark_block_size"], c["dspark_noise_token_id"]
        self.stages = len(c["compress_ratios"]) - c["num_hidden_layers"]
        self.last = f"mtp.{self.stages - 1}."

    def context(self, taps, first=0):
        """Keys of the tokens at positions `first`, first + 1, ...: [stages, T, head_dim]. `taps`: [T, targets, hidden]."""
        model, w = self.model, self.model.weights
        x = norm(taps.reshape(len(taps), -1) @ w["mtp.0.main_proj.weight"].T, w["mtp.0.main_norm.weight"])
        angles = model.angles(first + np.arange(len(taps)), False)
        return np.array([model.keys(f"mtp.{stage}.attn", x, angles) for stage in range(self.stages)])

    def rows(self, context, position, token):
        """The collapsed rows behind `position`, whose next token is `token`: [block, hidden]. `context`: keys of positions that end
        with `position`, at least the window's if there are so many."""
        model, c, w = self.model, self.model.config, self.model.weights
        ids = np.array([token] + [self.noise] * (self.block_size - 1))
        angles = model.angles(position + 1 + np.arange(self.block_size), False)
        streams = np.repeat(w["embed.weight"][ids][:, None], c["hc_mult"], axis=1)
        for stage in range(self.stages):
            name = f"mtp.{stage}"
            past = context[stage][-c["sliding_window"]:]

            def attend(x, name=name + ".attn", past=past):
                _, q = model.queries(name, x, angles)
                keys = np.vstack([past, model.keys(name, x, angles)])
                return model.attend(name, q, keys, np.ones((len(x), len(keys)), bool), angles)

            streams = model.block(c["num_hidden_layers"] + stage, name, attend, streams, ids)
        return model.collapsed(self.last, streams)

    def draft(self, context, position, token):
        w = self.model.weights
        x = self.rows(context, position, token)
        base = norm(x, w[self.last + "norm.weight"]) @ w["head.weight"].T
        ids, logits, confidence = [], [], []
        for row in range(self.block_size):
            known = w[self.last + "markov_head.markov_w1.weight"][token]
            logits.append(base[row] + w[self.last + "markov_head.markov_w2.weight"] @ known)
            confidence.append(sigmoid(w[self.last + "confidence_head.proj.weight"][0] @ np.concatenate([x[row], known])))
            token = int(logits[-1].argmax())
            ids.append(token)
        return Draft(np.array(ids), np.array(logits), base, np.array(confidence))
