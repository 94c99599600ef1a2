"""The golden frames: what each is, and what a receiver must make of it. Their files are written once (write.py) and never change."""

from .wire import Frame, Payload, carrier_hello

INCARNATION = 0x11223344
SESSION = 0x1122334400000001

# What the session of a request agreed on, where it is not what SETTINGS_DEFAULT says.
SETTINGS_DEFAULT = {"hidden": 3, "top_k": 2, "experts": 16, "vocab": 512, "moe_layers": "3-6", "shared": 64, "gate": "attention",
                    "token_ids": "no", "activation": "bf16", "reply": "bf16", "programs": "none"}
FFN_GATE = {"gate": "ffn"}
WITH_TOKENS = {"gate": "ffn", "token_ids": "yes"}

SETTING_LINES = [
    ("protocol", "1.0"), ("model_fingerprint", "00000000deadbeef"), ("hidden_size", 3), ("num_layers", 7), ("draft_layers", 0),
    ("moe_layers", "3-6"), ("hash_layers", 0), ("num_experts", 16), ("top_k", 2), ("moe_intermediate_size", 64),
    ("shared_intermediate_size", 64), ("vocab_size", 512), ("gate", "attention"), ("shared_experts", "ffn"), ("num_ffn_ranks", 1),
    ("connector", "any"), ("routing", "model"), ("token_ids", "no"), ("compute_dtype", "bf16"), ("weights", "as stored"),
    ("activation_dtype", "bf16"), ("reply_dtype", "bf16"), ("deterministic", "no"), ("execution", "eager"), ("capture_sizes", "none"),
    ("tile_rows", 64), ("numerics_id", "0000000000000007")]


def identity(role, incarnation, name):
    return [("peer.role", role), ("peer.rank", 0), ("peer.name", name), ("peer.incarnation", incarnation)]


def settings_text(lines):
    return "".join(f"{key}={value}\n" for key, value in lines)


def text(role, value):
    return Payload(role, "u8", 1, len(value.encode()), value)


def request_header(**changes):
    return {"session": SESSION, "incarnation": INCARNATION, "step": 7, "layer": 3, "lane": 1, "tile": 0, "tiles": 1, "map_epoch": 1,
            "rows": 2, "capacity": 8, "attempt": 1, "row_class": 0, **changes}


def rows_of(dtype="bf16", rows=2, cols=3, **more):
    values = [1, 2, 3, -1, -2, -3] if (rows, cols) == (2, 3) else [(i % 7) - 3 for i in range(rows * cols)]
    if dtype.startswith("f8"):  # stored numbers: 0x38 is 1.0, 0xb8 is -1.0
        values = [0x38 if i % 2 == 0 else 0xB8 for i in range(rows * cols)]
    return Payload("activation", dtype, rows, cols, values, **more)


def ids(values=(5, 0, 15, 2), dtype="i32", rows=2, cols=2, **more):
    return Payload("expert_ids", dtype, rows, cols, list(values), **more)


def weights(values=(0.75, 0.25, 1.5, -0.5), rows=2, cols=2, **more):
    return Payload("expert_weights", "f32", rows, cols, list(values), **more)


def tokens(values=(5, 511), **more):
    return Payload("token_ids", "i32", len(values), 1, list(values), **more)


def shared(values=(1, 0)):
    return Payload("shared_rows", "u8", len(values), 1, list(values))


def times():
    return Payload("reply_times", "u32", 1, 4, [12, 340, 0, 360])


def output(dtype="bf16", rows=2):
    return Payload("output", dtype, rows, 3, [0.5, -0.25, 8, 1, 0, -1][:3 * rows])


def code(value=2):
    return Payload("error_code", "u32", 1, 1, [value])


def request(*payloads, **changes):
    frame_only = {name: changes.pop(name) for name in ("damage", "cut", "tail") if name in changes}
    return Frame("ffn_request", payloads, **frame_only, **request_header(**changes))


def reply(*payloads, **changes):
    return Frame("ffn_reply", payloads, **request_header(**changes))


GOLDEN = {}


def add(name, about, frame, settings=None, refused=None, request=None, encode=True, sender=None):
    """`refused`: (code, words of the reason) by the frame's own rules; `request`: the same by the session's, None when it is served.
    `encode`: a sender of this release writes these very bytes."""
    assert name not in GOLDEN
    GOLDEN[name] = {"about": about, "frame": frame, "settings": settings, "refused": refused, "request": request,
                    "encode": encode and refused is None, "sender": sender}


def refuse(name, about, frame, code_name, words):
    add(name, about, frame, refused=(code_name, words))


def wrong_values(name, about, frame, code_name, words, settings=None):
    add(name, about, frame, settings=settings or {}, request=(code_name, words), encode=False)


# ---- the handshake ----
add("hello", "Attention says hello: who it is, and every setting.",
    Frame("hello", [text("settings", settings_text(identity("attention", 41, "a:411") + SETTING_LINES))]))
add("hello_describe", "A client without the model's files says hello: it takes the rank's settings (section 4, setting -).",
    Frame("hello", [text("settings", settings_text(identity("attention", 41, "a:411") + [
        (key, value if key == "protocol" else "-") for key, value in SETTING_LINES]))]))
add("hello_ack", "The FFN rank holds experts 0 to 15 of layers 3 and 4, all 64 rows of each.",
    Frame("hello_ack", [text("settings", settings_text(identity("ffn", INCARNATION, "b:97") + SETTING_LINES)),
                        Payload("pieces", "u32", 2, 6, [3, 0, 16, 0, 64, 0, 4, 0, 16, 0, 64, 0])],
          session=SESSION, incarnation=INCARNATION))
add("refuse", "The FFN rank refuses: the settings differ.",
    Frame("refuse", [code(1), text("error_text", "hidden_size is 3 on FFN rank 0 (b:97) and 4 on attention rank 0 (a:411): load the "
                                                 "same model folder on both sides")], session=SESSION, incarnation=INCARNATION))


def canary(kind, index, *payloads):
    return Frame(kind, payloads, session=SESSION, incarnation=INCARNATION, layer=3, tile=index, tiles=2, rows=64, capacity=64)


CANARY_ROWS = rows_of(rows=64)
CANARY_IDS = ids([i % 16 for i in range(128)], rows=64)
CANARY_WEIGHTS = weights([(i % 7 + 1) / 8 for i in range(128)], rows=64)
add("canary_request", "Canary 0: a request of 64 rows, which would be served.", canary("canary", 0, CANARY_ROWS, CANARY_IDS, CANARY_WEIGHTS),
    settings={})
add("canary_output", "Canary 1: the output of a reply of 64 rows.",
    canary("canary", 1, Payload("output", "bf16", 64, 3, [(i % 5) - 2 for i in range(192)])))
add("canary_echo", "The echo of canary 0: another kind, another checksum, the same bytes.",
    canary("canary_echo", 0, CANARY_ROWS, CANARY_IDS, CANARY_WEIGHTS))

# ---- requests, by what they carry ----
add("request_rows_alone", "Rows and nothing else: the gate is on FFN.", request(rows_of()), settings=FFN_GATE)
add("request_token_ids", "Rows with token ids, the third of five tiles of a prompt.",
    Frame("ffn_request", [rows_of(), tokens()], session=0x0123456789ABCDEF, incarnation=INCARNATION, step=7, layer=3, lane=1, tile=2,
          tiles=5, map_epoch=9, rows=2, capacity=8, attempt=0x0A0B, row_class=2), settings=WITH_TOKENS)
add("request_expert_ids", "Rows with their routing: two experts for each of two rows.", request(rows_of(), ids(), weights()), settings={})
add("request_f32", "The same in float32.", request(rows_of("f32"), ids(), weights()), settings={"activation": "f32", "reply": "f32"})
add("request_fp8", "e4m3 values with a float32 scale for 128 of them; the last block of a row has 72.",
    request(rows_of("f8_e4m3", cols=200), Payload("activation_scale", "f32", 2, 2, [1, 0.5, 2, 0.25], block=7), ids(), weights()),
    settings={"activation": "fp8", "hidden": 200})
add("request_mxfp8", "e4m3 values with an e8m0 scale for 32 of them: 127 is 1, 126 a half.",
    request(rows_of("f8_e4m3", cols=40), Payload("activation_scale", "f8_e8m0", 2, 2, [127, 126, 128, 125], block=5), ids(), weights()),
    settings={"activation": "mxfp8", "hidden": 40})
add("request_int8", "int8 values with a float32 scale a row.",
    request(Payload("activation", "i8", 2, 3, [127, -127, 0, 1, 2, -3]), Payload("activation_scale", "f32", 2, 1, [0.5, 0.25]), ids(),
            weights()), settings={"activation": "int8"})
add("request_part", "A part (flag partial): slots of other ranks weigh 0; the receiver adds shared experts to row 0.",
    request(rows_of(), ids(), weights((0.75, 0, 0, 1.5)), shared(), flags=1), settings={})
add("request_part_shared_only", "A part whose second row wants the shared experts and nothing else.",
    request(rows_of(), ids(), weights((0.75, 0, 0, 0)), shared((0, 1)), flags=1), settings={})
add("request_by_map", "All rows with their whole routing (flags partial and by_map): the receiver takes its part by map 9.",
    request(rows_of(), ids(), weights(), flags=3, map_epoch=9), settings={})
add("request_no_rows", "A tile without rows: answered at once.",
    request(Payload("activation", "bf16", 0, 3, []), Payload("expert_ids", "i32", 0, 2, []), Payload("expert_weights", "f32", 0, 2, []),
            rows=0), settings={})
add("request_program", "A decode step that replays the program of 8 rows.", request(rows_of(), ids(), weights(), program=8),
    settings={"programs": "8,16"})
add("request_padded_rows", "Activation rows with 10 bytes between them: allowed, though no sender of ours does it.",
    request(rows_of(pad=10), ids(), weights()), settings={}, encode=False)
add("request_later_minor", "A minor version that is not known here, with a role that need not be understood: skipped.",
    request(rows_of(), ids(), weights(), Payload(200, "u8", 1, 4, [1, 2, 3, 4], optional=True), minor=3), settings={}, encode=False)

# ---- replies ----
add("reply", "The rows, and how long the rank took: 12 us in the queue, 340 us computing, 360 us in all.", reply(output(), times()))
add("reply_f32", "The same in float32.", reply(output("f32"), times()))
add("reply_f64", "Deterministic sums travel in float64.", reply(output("f64"), times()))
add("reply_no_rows", "The answer to a tile without rows.", reply(output(rows=0), Payload("reply_times", "u32", 1, 4, [0] * 4), rows=0))
add("reply_error", "A request whose values were wrong; the session goes on.",
    reply(times(), code(1), text("error_text", "routing: expert id 16 of row 1 is not in 0..15")))

# ---- without payload ----
add("cancel", "What still waits of (step 7, layer 3, lane 1, attempt 1) is not wanted any more.", Frame("cancel", **request_header(rows=0, capacity=0)))
add("drain", "The rank is about to stop.", Frame("drain", session=SESSION, incarnation=INCARNATION))
add("goodbye", "A wanted end.", Frame("goodbye", session=SESSION, incarnation=INCARNATION))

# ---- not a frame, or damaged ----
base = (rows_of(), ids(), weights())
refuse("bad_magic", "An HTTP request on the port.", request(*base, damage=dict(enumerate(b"GET "))), "data_loss", "magic")
refuse("bad_checksum", "One bit of the layer was turned over on the way.", request(*base, damage={32: 2}), "data_loss", "checksum")
refuse("bad_cut", "Half a frame.", request(*base, cut=170), "data_loss", "170 arrived")
refuse("bad_cut_header", "Half a header.", request(*base, cut=32), "data_loss", "32 bytes, a header alone has 64")
refuse("bad_tail", "Bytes behind the last payload.", request(*base, tail=64), "data_loss", "64 bytes after the last payload")
refuse("bad_total", "A length that is not the message's.", request(*base, total_bytes=100), "data_loss", "says 100 bytes")
refuse("bad_major", "Another major version.", request(*base, major=2), "unsupported", "protocol 2.0 there, 1.0 here")
refuse("bad_header_bytes", "A header of another size.", request(*base, header_bytes=128), "data_loss", "header of 128 bytes")
refuse("bad_kind", "A kind that nobody knows.", Frame(99, base, **request_header()), "unsupported", "frame kind 99 is unknown")
refuse("bad_descriptor_count", "More than eight descriptors.", request(*base, descriptors=9), "data_loss", "9 descriptors, at most 8")

# ---- header fields ----
refuse("bad_flags", "A header flag that nobody knows.", request(*base, flags=4), "invalid_argument", "header flags 0x4")
refuse("bad_flags_without_rows", "A flag where no rows are.", Frame("goodbye", flags=1), "invalid_argument", "in a frame without rows")
refuse("bad_by_map_alone", "by_map without partial.", request(*base, flags=2), "invalid_argument", "by_map without partial")
refuse("bad_rows", "More rows than the capacity.", request(*base, capacity=1), "invalid_argument", "rows 2 exceed capacity 1")
refuse("bad_capacity", "A tile of more than 64 rows.", request(*base, capacity=65), "invalid_argument", "at most 64 rows")
refuse("bad_row_class", "A class that nobody knows.", request(*base, row_class=4), "invalid_argument", "row class 4")
refuse("bad_tile", "Tile 1 of 1.", request(*base, tile=1), "invalid_argument", "tile 1 of 1")

# ---- descriptors ----
refuse("bad_role", "A role that must be understood and is not.", request(*base, Payload(99, "u8", 1, 4, [1, 2, 3, 4])), "unsupported",
       "role 99 must be understood")
refuse("bad_role_twice", "Two activations.", request(rows_of(), rows_of(), ids(), weights()), "invalid_argument", "activation appears twice")
refuse("bad_role_here", "Settings in a request.", request(*base, text("settings", "a=b\n")), "invalid_argument", "does not belong")


def lying(**lies):
    """The request of all cases above, with another descriptor of its rows."""
    return request(rows_of(lies=lies), ids(), weights())


refuse("bad_dtype_number", "An element type that nobody knows.", lying(dtype=99), "data_loss", "dtype 99 is unknown")
refuse("bad_descriptor_flags", "A descriptor flag that nobody knows.", lying(flags=3), "data_loss", "flags 0x3")
refuse("bad_reserved", "Reserved bytes that are not zero.", lying(reserved=1), "data_loss", "reserved bytes are not zero")
refuse("bad_stride", "Rows that overlap.", lying(stride=4), "data_loss", "row stride 4 is less than the 6 bytes of a row")
refuse("bad_stride_element", "Rows that begin inside an element.", lying(stride=7, bytes=14), "data_loss", "no multiple of an element")
refuse("bad_bytes", "A length that is not rows times stride.", lying(bytes=14), "data_loss", "14 bytes, 2 rows of 6 make 12")
refuse("bad_offset_gap", "A payload that begins later than it must.", lying(offset=256), "data_loss", "leaves a gap")
refuse("bad_offset_overlap", "A payload that lies over the descriptors.", lying(offset=64), "data_loss", "overlaps")
refuse("bad_offset_odd", "A payload between two multiples of 64.", lying(offset=193), "data_loss", "no multiple of 64")
refuse("bad_end", "A payload that goes on behind the frame.", request(rows_of(lies={"rows": 200, "bytes": 1200})), "data_loss", "the frame at")
refuse("bad_block", "A block where no scale is.", request(rows_of(block=7), ids(), weights()), "invalid_argument", "only a scale has one")

# ---- what belongs together ----
fp8 = {"dtype": "f8_e4m3", "cols": 200}
fp8_scales = Payload("activation_scale", "f32", 2, 2, [1, 0.5, 2, 0.25], block=7)
refuse("rule_no_activation", "A request without rows' payload.", request(ids(), weights()), "invalid_argument", "activation is missing")
refuse("rule_activation_f16", "Half precision is not sent.", request(rows_of("f16"), ids(), weights()), "invalid_argument", "dtype f16")
refuse("rule_activation_e5m2", "e5m2 is too coarse.", request(rows_of("f8_e5m2"), ids(), weights()), "invalid_argument", "f8_e5m2")
refuse("rule_activation_rows", "Three rows in a tile of two.", request(rows_of(rows=3), ids(), weights()), "invalid_argument", "has 3 rows, expected 2")
refuse("rule_tokens_and_ids", "Token ids beside a routing.", request(rows_of(), tokens(), ids(), weights()), "invalid_argument", "beside a routing")
refuse("rule_ids_alone", "Expert ids without weights.", request(rows_of(), ids()), "invalid_argument", "expert_ids without expert_weights")
refuse("rule_weights_alone", "Weights without expert ids.", request(rows_of(), weights()), "invalid_argument", "expert_weights without expert_ids")
refuse("rule_top_k", "Two ids and one weight a row.", request(rows_of(), ids(), weights((1, 1), cols=1)), "invalid_argument",
       "2 expert_ids a row beside 1 expert_weights")
refuse("rule_ids_i64", "Expert ids of 64 bits.", request(rows_of(), ids(dtype="i64"), weights()), "invalid_argument", "dtype i64")
refuse("rule_bf16_scale", "A scale beside bf16 rows.", request(rows_of(cols=200), fp8_scales, ids(), weights()), "invalid_argument",
       "activation_scale beside bf16")
refuse("rule_fp8_no_scale", "e4m3 rows without a scale.", request(rows_of(**fp8), ids(), weights()), "invalid_argument", "without activation_scale")
refuse("rule_fp8_block", "float32 scales of blocks of 32.",
       request(rows_of(**fp8), Payload("activation_scale", "f32", 2, 7, [1] * 14, block=5), ids(), weights()), "invalid_argument",
       "blocks of 2^7 values, not 2^5")
refuse("rule_fp8_scales", "One scale where two blocks are.",
       request(rows_of(**fp8), Payload("activation_scale", "f32", 2, 1, [1, 1], block=7), ids(), weights()), "invalid_argument",
       "has 1 columns")
refuse("rule_int8_scale", "An e8m0 scale of int8 rows.",
       request(Payload("activation", "i8", 2, 3, [1] * 6), Payload("activation_scale", "f8_e8m0", 2, 1, [127, 127]), ids(), weights()),
       "invalid_argument", "one f32 scale a row")
refuse("rule_fp8_unrouted", "Rounded rows that somebody would have to route.", request(rows_of(**fp8), fp8_scales), "invalid_argument",
       "a router must see the rows before they are rounded")
refuse("rule_part_unrouted", "A part without a routing.", request(rows_of(), flags=1), "invalid_argument", "a part (flag partial) without a routing")
refuse("rule_shared_whole", "shared_rows of whole rows.", request(*base, shared()), "invalid_argument", "shared_rows belongs to a part")
refuse("rule_shared_by_map", "shared_rows beside by_map.", request(*base, shared(), flags=3), "invalid_argument", "shared_rows belongs to a part")
refuse("rule_output_in_request", "A reply's payload in a request.", request(*base, output()), "invalid_argument", "does not belong")
refuse("rule_reply_both", "An output beside an error.", reply(output(), times(), code(), text("error_text", "no")), "invalid_argument",
       "exactly one of output and error")
refuse("rule_reply_neither", "A reply that says nothing.", reply(times()), "invalid_argument", "exactly one of output and error")
refuse("rule_reply_no_times", "A reply without times.", reply(output()), "invalid_argument", "reply_times is missing")
refuse("rule_error_half", "A code without a text.", reply(times(), code()), "invalid_argument", "error_code and error_text come together")
refuse("rule_canary_both", "A canary that is request and reply.", canary("canary", 0, CANARY_ROWS, Payload("output", "bf16", 64, 3, [0] * 192)),
       "invalid_argument", "exactly one of activation and output")
refuse("rule_hello_empty", "A hello that says nothing.", Frame("hello"), "invalid_argument", "settings is missing")
refuse("rule_pieces_padded", "Pieces with gaps between their rows.",
       Frame("hello_ack", [text("settings", settings_text(identity("ffn", INCARNATION, "b:97"))),
                           Payload("pieces", "u32", 2, 6, [3, 0, 16, 0, 64, 0, 4, 0, 16, 0, 64, 0], pad=8)]), "invalid_argument",
       "pieces has a row stride of 32, expected rows without gaps")
refuse("rule_ack_no_pieces", "An answer that does not say what the rank holds.",
       Frame("hello_ack", [text("settings", settings_text(identity("ffn", INCARNATION, "b:97")))]), "invalid_argument", "pieces is missing")
refuse("rule_error_text_long", "A reason of more than 2048 bytes.", Frame("refuse", [code(1), text("error_text", "x" * 2049)]), "invalid_argument",
       "error_text has 2049 columns")

# ---- frames that are right, with values that the session does not take: the request is refused, the session goes on ----
wrong_values("value_layer", "Layer 2 has no experts.", request(*base, layer=2), "out_of_range", "layer 2 has no experts")
wrong_values("value_hidden", "Rows of another width.", request(rows_of(cols=4), ids(), weights()), "invalid_argument", "activation of 4 columns, hidden_size is 3")
wrong_values("value_dtype", "float32 where bf16 was agreed.", request(rows_of("f32"), ids(), weights()), "unsupported", "the session agreed on bf16")
wrong_values("value_scales", "mxfp8's scales where fp8's were agreed.", request(
    rows_of("f8_e4m3", cols=40), Payload("activation_scale", "f8_e8m0", 2, 2, [127] * 4, block=5), ids(), weights()), "unsupported",
    "the session agreed on fp8", settings={"activation": "fp8", "hidden": 40})
wrong_values("value_unrouted", "No routing, and the gate is on attention.", request(rows_of()), "invalid_argument",
             "carries no routing, the placement agreed on asks for expert ids and weights")
wrong_values("value_routed", "A routing, and the gate is on FFN.", request(*base), "invalid_argument", "asks for no routing", settings=FFN_GATE)
wrong_values("value_tokens", "Token ids that nobody asked for.", request(rows_of(), tokens()), "invalid_argument", "carries token ids")
wrong_values("value_token_high", "A token id that the vocabulary does not have.", request(rows_of(), tokens((5, 512))), "out_of_range",
             "row 1: token id 512 outside a vocabulary of 512", settings=WITH_TOKENS)
wrong_values("value_token_negative", "A token id below 0.", request(rows_of(), tokens((-1, 5))), "out_of_range", "row 0: token id -1", settings=WITH_TOKENS)
wrong_values("value_expert_high", "An expert that the model does not have.", request(rows_of(), ids((5, 0, 16, 2)), weights()), "invalid_argument",
             "expert id 16 of row 1 is not in 0..15")
wrong_values("value_expert_negative", "An expert below 0.", request(rows_of(), ids((-1, 0, 1, 2)), weights()), "invalid_argument", "expert id -1 of row 0")
wrong_values("value_weight_nan", "A weight that is no number.", request(rows_of(), ids(), weights((0.75, float("nan"), 1.5, 1))), "invalid_argument",
             "the weight of expert 0 in row 0 is not finite")
wrong_values("value_weight_infinite", "A weight without end.", request(rows_of(), ids(), weights((0.75, 1, float("inf"), 1))), "invalid_argument",
             "the weight of expert 15 in row 1 is not finite")
wrong_values("value_weights_zero", "A row that goes nowhere.", request(rows_of(), ids(), weights((1, 0, 0, 0))), "invalid_argument", "all weights of row 1 are 0")
wrong_values("value_top_k", "Three experts a row of a model that takes two.", request(rows_of(), ids([1, 2, 3] * 2, cols=3), weights([1] * 6, cols=3)),
             "invalid_argument", "routing with top_k 3, the model has 2")
wrong_values("value_ids_padded", "Expert ids with gaps between rows.", request(rows_of(), ids(pad=8), weights()), "invalid_argument", "expected rows without gaps")
wrong_values("value_program_eager", "A program in an eager session.", request(*base, program=8), "unsupported", "the session agreed on execution eager")
wrong_values("value_program_small", "A program of fewer rows than the tile has.", request(*base, program=1), "invalid_argument", "program 1 has room",
             settings={"programs": "1,16"})
wrong_values("value_part_idle_row", "A row of a part without work.", request(rows_of(), ids(), weights((1, 0, 0, 0)), flags=1), "invalid_argument", "a row without work")
wrong_values("value_shared_two", "shared_rows is 0 or 1.", request(rows_of(), ids(), weights(), shared((1, 2)), flags=1), "invalid_argument", "shared_rows is 2")
wrong_values("value_shared_unwanted", "shared_rows, and attention adds the shared experts itself.", request(rows_of(), ids(), weights(), shared(), flags=1),
             "invalid_argument", "FFN ranks add no shared experts", settings={"shared": 0})

# ---- the tcp carrier: bytes as they stand on the connection ----
CARRIER = {
    "tcp_hello": ("The first bytes of each side: a hello of 64 bytes.", [("hello", 0, 64)], carrier_hello()),
    "tcp_hello_adopt": ("A client that takes the rank's numbers (section 3).", [("hello", 0, 64)], carrier_hello(0, 0, 0, 0)),
    "tcp_data": ("A message of 64 bytes on control: a goodbye.",
                 [("data", 0, 64)], GOLDEN["goodbye"]["frame"].bytes),
    "tcp_credit": ("Three slots of the request channel are free again.", [("credit", 1, 3)], b""),
    "tcp_heartbeat": ("I live.", [("heartbeat", 0, 0)], b""),
    "tcp_bye": ("I end the connection; nothing follows.", [("bye", 0, 0)], b""),
}
TCP_KINDS = {"hello": 1, "data": 2, "credit": 3, "heartbeat": 4, "bye": 5}
