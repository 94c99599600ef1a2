"""Settings: what both sides of a session must agree on (docs/protocol.md section 4). A client without the model's files knows none of
them: it says `-` for each and takes what the FFN rank states."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import InvalidArgument, Unsupported, clean_text
from .formats import QUANTIZED
from .frame import TILE_ROWS

PROTOCOL = "1.0"
UNSTATED = "-"  # "I do not know it, and take yours"
KEYS = ("protocol", "model_fingerprint", "hidden_size", "num_layers", "draft_layers", "moe_layers", "hash_layers", "num_experts", "top_k",
        "moe_intermediate_size", "shared_intermediate_size", "vocab_size", "gate", "shared_experts", "num_ffn_ranks", "connector", "routing",
        "token_ids", "compute_dtype", "weights", "activation_dtype", "reply_dtype", "deterministic", "execution", "capture_sizes", "tile_rows",
        "numerics_id")
_MAX_LINES = 256  # the other side's limit; bounds what a stranger can make us read
_MAX_NUMBER = 2**31 - 1
_MAX_COUNT = 2**16 - 1  # layers, experts and ranks are numbered in 16 bits


@dataclass(frozen=True)
class Identity:
    role: str
    rank: int
    name: str  # host:pid
    incarnation: int

    def text(self) -> str:
        return f"{'FFN' if self.role == 'ffn' else self.role} rank {self.rank} ({self.name})"


def own_identity(rank: int) -> Identity:
    """Of this process; each connection of it may share one."""
    return Identity("attention", rank, f"{socket.gethostname()}:{os.getpid()}", secrets.randbelow(2**32 - 1) + 1)


def encode_hello(identity: Identity) -> bytes:
    """Lines of a hello that leaves every setting but the protocol to the FFN rank."""
    lines = [f"peer.role={identity.role}", f"peer.rank={identity.rank}", f"peer.name={identity.name}",
             f"peer.incarnation={identity.incarnation}"]
    lines += [f"{key}={PROTOCOL if key == 'protocol' else UNSTATED}" for key in KEYS]
    return "".join(line + "\n" for line in lines).encode()


def decode_hello(text: bytes) -> tuple[Identity, dict[str, str]]:
    """Who speaks, and the settings. InvalidArgument: no key=value lines, a key given twice, no identity."""
    values: dict[str, str] = {}
    lines = text.split(b"\n")
    if lines[-1] != b"" or len(lines) > _MAX_LINES:
        raise InvalidArgument(f"hello: {len(lines)} lines, or the last one without an end")
    for line in lines[:-1]:
        key, equals, value = clean_text(line).partition("=")
        if not equals or not key or key in values:
            raise InvalidArgument(f"hello: line {key[:80]!r} is not key=value, or is given twice")
        values[key] = value
    try:
        identity = Identity(values["peer.role"], int(values["peer.rank"]), values["peer.name"], int(values["peer.incarnation"]))
    except (KeyError, ValueError) as error:
        raise InvalidArgument(f"hello: {error}: peer.role, peer.rank, peer.name and peer.incarnation must all be there") from None
    return identity, {key: value for key, value in values.items() if not key.startswith("peer.")}


@dataclass(frozen=True)
class Settings:
    """What an FFN rank stated, typed. `raw`: every key as its text."""

    raw: Mapping[str, str]
    hidden_size: int
    num_layers: int
    vocab_size: int
    num_experts: int
    top_k: int
    moe_intermediate_size: int
    shared_intermediate_size: int
    moe_layers: tuple[int, ...]  # ascending; drafters' layers behind the model's too
    gate: str  # attention or ffn: who routes
    shared_experts: str  # attention or ffn: who adds them
    num_ffn_ranks: int
    connector: str  # p2p, m2n or auto; any with one rank
    token_ids: bool  # requests carry the token of each row
    activation_dtype: str  # bf16, f32, fp8, mxfp8 or int8
    reply_dtype: str  # bf16, f32, or f64 when deterministic

    @property
    def gate_on_client(self) -> bool:
        return self.gate == "attention"

    @property
    def shared_experts_on_client(self) -> bool:
        return self.shared_experts == "attention" and self.shared_intermediate_size > 0

    @property
    def shared_experts_on_ffn(self) -> bool:
        return self.shared_experts == "ffn" and self.shared_intermediate_size > 0

    @staticmethod
    def of(values: Mapping[str, str]) -> Settings:
        """From the text of a hello_ack. Unsupported, by name: what this client cannot do."""
        missing = [key for key in KEYS if key not in values]
        # What begins with "may." is an offer that nobody has to take.
        unknown = [key for key in values if key not in KEYS and not key.startswith("may.")]
        if missing or unknown:
            raise Unsupported(f"settings without {missing} and with {unknown}: run the same release on both sides")

        def choice(key: str, *allowed: str) -> str:
            if values[key] not in allowed:
                raise Unsupported(f"{key} is {values[key]!r}, this client knows {', '.join(allowed)}")
            return values[key]

        def number(key: str, least: int = 1, most: int = _MAX_NUMBER) -> int:
            value = _number(values[key], most)
            if value is None or value < least:
                raise InvalidArgument(f"{key} is {values[key][:80]!r}, not a number from {least} to {most}")
            return value

        if values["protocol"].partition(".")[0] != PROTOCOL.partition(".")[0]:  # the smaller minor is in use: 0, which is ours
            raise Unsupported(f"protocol is {values['protocol']} there and {PROTOCOL} here: run the same release on both sides")
        choice("tile_rows", str(TILE_ROWS))
        settings = Settings(
            raw=dict(values), hidden_size=number("hidden_size"), num_layers=number("num_layers", most=_MAX_COUNT), vocab_size=number("vocab_size"),
            num_experts=number("num_experts", most=_MAX_COUNT), top_k=number("top_k"), moe_intermediate_size=number("moe_intermediate_size"),
            shared_intermediate_size=number("shared_intermediate_size", 0), moe_layers=_layers(values["moe_layers"]),
            gate=choice("gate", "attention", "ffn"), shared_experts=choice("shared_experts", "attention", "ffn"),
            num_ffn_ranks=number("num_ffn_ranks", most=_MAX_COUNT), connector=choice("connector", "any", "p2p", "m2n", "auto"),
            token_ids=choice("token_ids", "yes", "no") == "yes",
            activation_dtype=choice("activation_dtype", "bf16", "f32", *QUANTIZED), reply_dtype=choice("reply_dtype", "bf16", "f32", "f64"))
        if settings.top_k > settings.num_experts:
            raise InvalidArgument(f"top_k {settings.top_k} of {settings.num_experts} experts")
        return settings

    def differing(self, other: Settings) -> list[str]:
        """Keys that two FFN ranks of one deployment, or one before and after, must have alike and have not."""
        def said(settings: Settings, key: str) -> str:
            return settings.raw[key].partition(".")[0] if key == "protocol" else settings.raw[key]

        # Kernels of another kind change last bits: a difference where equal ones are promised.
        free = () if self.raw["deterministic"] == "yes" else ("numerics_id",)
        return [key for key in KEYS if key not in free and said(self, key) != said(other, key)]

    def largest_frame(self) -> int:
        """Bytes that a slot must hold (docs/protocol.md section 3)."""
        return TILE_ROWS * (8 * self.hidden_size + 8 * self.top_k) + 4096

    def check(self, expected: Mapping[str, object], us: str, them: str) -> None:
        """InvalidArgument naming every key of `expected` that is otherwise here, with both values and both peers."""
        wrong = [f"{key} is {value} on {us} and {self.raw.get(key, '(absent)')} on {them}" for key, value in expected.items()
                 if self.raw.get(key) != str(value)]
        if wrong:
            raise InvalidArgument("; ".join(wrong) + ": load the same model on both sides")


def _layers(text: str) -> tuple[int, ...]:
    """ "3-60" or "0,2,4"."""
    first, dash, last = text.partition("-")
    layers = [_number(layer, _MAX_COUNT) for layer in ((first, last) if dash else text.split(","))]
    if None in layers or any(a >= b for a, b in zip(layers, layers[1:], strict=False)) and not (dash and first == last):
        raise InvalidArgument(f"moe_layers is {text[:80]!r}, not a range or an ascending list of layers")
    return tuple(range(layers[0], layers[1] + 1)) if dash else tuple(layers)


def _number(text: str, most: int) -> int | None:
    """None: no number, or a larger one."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most))) or int(text) > most:
        return None
    return int(text)
