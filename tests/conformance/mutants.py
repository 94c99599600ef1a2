"""What can be wrong with a rank, one thing at a time, and the cases of `tandem conformance` that must say so."""

import math
import re
import struct
import threading

from .mutated_rank import CREDIT, DATA, EXCHANGE, HEARTBEAT, HELLO, REQUEST, Message, Mutation, beat_for

BYE = 5  # of the carrier


class Messages(Mutation):
    """Mutations of messages: `sent` and `answered` change one, or give None to lose it."""

    def up(self, kind, channel, value):
        return self._pass(self.sent, kind, channel, value)

    def down(self, kind, channel, value):
        return self._pass(self.answered, kind, channel, value)

    @staticmethod
    def _pass(change, kind, channel, value):
        if kind == DATA and isinstance(value, Message) and value.is_frame:
            value = change(value)
        return [] if value is None else [(kind, channel, value)]

    def sent(self, message):
        return message

    def answered(self, message):
        return message


class AnotherStep(Messages):
    def answered(self, message):
        if message.kind == "ffn_reply":
            message["step"] = (message["step"] + 1) % (1 << 32)
            message.seal()
        return message


class TwoAnswers(Messages):
    def __init__(self):
        self.extra = 0

    def down(self, kind, channel, value):
        twice = kind == DATA and value.kind == "ffn_reply"
        self.extra += twice
        return [(kind, channel, value)] * (2 if twice else 1)

    def up(self, kind, channel, value):
        if kind == CREDIT and channel == REQUEST:  # the rank has sent one of the two
            mine = min(self.extra, value)
            self.extra -= mine
            value -= mine
        return [] if kind == CREDIT and value == 0 else [(kind, channel, value)]


class KeepsCredits(Mutation):
    def down(self, kind, channel, value):
        return [] if kind == CREDIT and channel == REQUEST else [(kind, channel, value)]


class GivesTooManyCredits(Mutation):
    def down(self, kind, channel, value):
        return [(kind, channel, value)] * (2 if kind == CREDIT and channel == REQUEST else 1)


class WrongChecksum(Messages):
    def answered(self, message):
        if message.kind == "ffn_reply":
            message["crc"] = message["crc"] ^ 1
        return message


class RowsInAnotherOrder(Messages):
    def answered(self, message):
        found = message.payload("output") if message.kind == "ffn_reply" else None
        if found is not None and found[2] > 1:
            offset, length, rows, _ = found
            row = length // rows
            message.data[offset:offset + length] = message.data[offset + row:offset + length] + message.data[offset:offset + row]
        return message


class RoundsLoneRowsOtherwise(Messages):
    def answered(self, message):
        found = message.payload("output") if message.kind == "ffn_reply" else None
        if found is not None and found[2] == 1:
            message.data[found[0]] ^= 1
        return message


class RoundsToFewBits(Messages):
    """bf16 with 3 bits less: the same rows always get the same bits, and they are not the model's."""

    def answered(self, message):
        if message.kind == "ffn_reply":
            message.set_values("output", "H", [value ^ 0x38 for value in message.values("output", "H")])
        return message


class NoHeartbeats(Mutation):
    def down(self, kind, channel, value):
        return [] if kind == HEARTBEAT else [(kind, channel, value)]


class SilentWithoutRows(Messages):
    def answered(self, message):
        return None if message.kind == "ffn_reply" and message["rows"] == 0 else message


class InternalErrors(Messages):
    def answered(self, message):
        if message.kind == "ffn_reply":
            message.set_values("error_code", "I", [9] if message.payload("error_code") else [])
        return message


class NeverRefuses(Messages):
    def answered(self, message):
        return None if message.kind == "refuse" else message


class DamagesCanaries(Messages):
    def answered(self, message):
        if message.kind == "canary_echo":
            message.data[-1] ^= 1
        return message


class NoTimes(Messages):
    def answered(self, message):
        if message.kind == "ffn_reply":
            message.set_values("reply_times", "I", [0, 5, 0, 0])
        return message


class HoldsNotAllExperts(Messages):
    def answered(self, message):
        if message.kind == "hello_ack":
            pieces = message.values("pieces", "I")
            pieces[2] -= 1
            message.set_values("pieces", "I", pieces)
        return message


class TakesUnknownExperts(Messages):
    def sent(self, message):
        if message.kind == "ffn_request":
            message.set_values("expert_ids", "i", [min(expert, 15) for expert in message.values("expert_ids", "i")])
        return message


class TakesAnyWeight(Messages):
    def sent(self, message):
        if message.kind == "ffn_request":
            message.set_values("expert_weights", "f", [value if math.isfinite(value) else 0.5 for value in message.values("expert_weights", "f")])
        return message


class TakesAnySession(Messages):
    field = "session"

    def __init__(self):
        self.right = None

    def answered(self, message):
        if message.kind == "hello_ack":
            self.right = message[self.field]
        return message

    def sent(self, message):
        if message.kind == "ffn_request" and message.is_sound() and self.right is not None:
            message[self.field] = self.right
            message.seal()
        return message


class TakesAnyIncarnation(TakesAnySession):
    field = "incarnation"


class OverlooksDamage(Messages):
    def sent(self, message):
        return message if message.is_sound() else None


class TakesAnyWidth(Messages):
    def sent(self, message):
        if message.kind == "hello":
            message.data[:] = re.sub(rb"\nhidden_size=\d+\n", b"\nhidden_size=128\n", bytes(message.data))
        return message


class RefusesOtherMinors(Messages):
    def sent(self, message):
        if message.kind == "hello":
            message.data[:] = bytes(message.data).replace(b"protocol=1.9", b"protocol=2.9")
        return message


class OverlooksForeignCredits(Mutation):
    def up(self, kind, channel, value):
        return [] if kind == CREDIT and channel == EXCHANGE else [(kind, channel, value)]


class OverlooksSilence(Mutation):
    def connected(self, rank):
        self.rank = rank

    def down(self, kind, channel, value):
        if kind == HELLO:  # the rank has heard the client's
            threading.Thread(target=beat_for, args=(self.rank, 20), daemon=True).start()
        return [(kind, channel, value)]


class RefusesCancels(Messages):
    def sent(self, message):
        if message.kind == "cancel":
            message["session"] = 0
            message.seal()
        return message


class LosesSlotsOfCancelled(Mutation):
    def __init__(self):
        self.cancelled = False

    def up(self, kind, channel, value):
        self.cancelled = self.cancelled or (kind == DATA and value.kind == "cancel")
        return [(kind, channel, value)]

    def down(self, kind, channel, value):
        return [] if kind == CREDIT and channel == REQUEST and self.cancelled else [(kind, channel, value)]


class ServesEveryLayer(Messages):
    def sent(self, message):
        if message.kind == "ffn_request" and message["layer"] == 0xFFFF and message.is_sound():
            message["layer"] = 1
            message.seal()
        return message


class ServesDenseLayers(Messages):
    def sent(self, message):
        if message.kind == "ffn_request" and message["layer"] == 0 and message.is_sound():
            message["layer"] = 1
            message.seal()
        return message


class AnswersInAnotherDtype(Messages):
    """Half as many float32 as there should be bf16: as many bytes, and no rule of frames is broken."""

    def answered(self, message):
        found = message.payload("output") if message.kind == "ffn_reply" else None
        if found is not None:
            for index in range(message.data[55]):
                at = 64 + 32 * index
                if struct.unpack_from("<I", message.data, at + 16)[0] == found[0]:
                    message.data[at + 2] = 1
                    struct.pack_into("<I", message.data, at + 8, found[3] // 2)
            message.seal()
        return message


class RefusesOverRequest(Mutation):
    def down(self, kind, channel, value):
        refuses = kind == DATA and value.kind == "refuse"
        return [(kind, REQUEST if refuses else channel, value)]


class AnotherWordThanBye(Mutation):
    def down(self, kind, channel, value):
        return [(77 if kind == BYE else kind, channel, value)]


class SettingsInAnotherOrder(Messages):
    """As right: no order is asked for."""

    def answered(self, message):
        if message.kind == "hello_ack":
            offset, length, _, _ = message.payload("settings")
            lines = bytes(message.data[offset:offset + length]).split(b"\n")[:-1]
            message.data[offset:offset + length] = b"".join(line + b"\n" for line in reversed(lines))
        return message


class AnotherRightRank(SettingsInAnotherOrder):
    """Whatever the page leaves to a rank, done otherwise: a later minor, settings in another order, other codes for what is wrong, no time
    that is worth a number, and an end without bye."""

    def down(self, kind, channel, value):
        return [] if kind == BYE else super().down(kind, channel, value)

    def answered(self, message):
        message = super().answered(message)
        if message.kind == "hello_ack":
            message.data[:] = bytes(message.data).replace(b"protocol=1.0\n", b"protocol=1.3\n")
        if message.payload("error_code"):
            message.set_values("error_code", "I", [8 if message.kind == "refuse" else 3])
        if message.payload("reply_times"):
            message.set_values("reply_times", "I", [0, 0, 0, 0])
        if message.kind != "canary_echo":
            message.data[5] = 3
            message.seal()
        return message


class FewSlots(Mutation):
    """Three where the rank has eight."""

    @staticmethod
    def _with(slots, instead, kind, channel, value):
        if kind == HELLO and value[8:12] == struct.pack("<I", instead):
            value = value[:8] + struct.pack("<I", slots) + value[12:]
        return [(kind, channel, value)]

    def up(self, kind, channel, value):
        return self._with(8, 3, kind, channel, value)

    def down(self, kind, channel, value):
        return self._with(3, 8, kind, channel, value)


class NoCaptureSizes(Messages):
    """Says that it replays programs, and of no size."""

    def answered(self, message):
        if message.kind == "hello_ack":
            offset, length, _, _ = message.payload("settings")
            said = bytes(message.data[offset:offset + length])
            was = re.search(rb"\nexecution=eager\ncapture_sizes=none\n", said)[0]
            now = b"\nexecution=graph\ncapture_sizes=\n"
            message.data[offset:offset + length] = said.replace(was, now[:-1] + b"0" * (len(was) - len(now)) + b"\n")
        return message


class OneAnswerToDuplicates(Messages):
    def __init__(self):
        self.seen = set()

    def answered(self, message):
        if message.kind != "ffn_reply":
            return message
        name = (message["step"], message["tile"], message["attempt"], message["layer"])
        known = name in self.seen
        self.seen.add(name)
        return None if known else message


# Name: (mutation, cases that must fail).
MUTANTS = {
    "another step": (AnotherStep, ["request.one_row"]),
    "two answers": (TwoAnswers, ["request.duplicates"]),
    "one answer to duplicates": (OneAnswerToDuplicates, ["request.duplicates"]),
    "keeps credits": (KeepsCredits, ["credits.come_back"]),
    "gives too many credits": (GivesTooManyCredits, ["credits.never_too_many"]),
    "wrong checksum": (WrongChecksum, ["request.one_row"]),
    "rows in another order": (RowsInAnotherOrder, ["numbers.order"]),
    "rounds lone rows otherwise": (RoundsLoneRowsOtherwise, ["numbers.company"]),
    "rounds to few bits": (RoundsToFewBits, ["numbers.reference"]),
    "no heartbeats": (NoHeartbeats, ["carrier.heartbeats_come"]),
    "silent without rows": (SilentWithoutRows, ["request.no_rows"]),
    "internal errors": (InternalErrors, ["value.layer_dense"]),
    "never refuses": (NeverRefuses, ["frame.checksum_header"]),
    "damages canaries": (DamagesCanaries, ["handshake.canary_echo"]),
    "no times": (NoTimes, ["request.full_tile"]),
    "holds not all experts": (HoldsNotAllExperts, ["handshake.pieces"]),
    "takes unknown experts": (TakesUnknownExperts, ["value.expert_high"]),
    "takes any weight": (TakesAnyWeight, ["value.weight_nan", "value.weight_infinite"]),
    "takes any session": (TakesAnySession, ["session.wrong_session"]),
    "takes any incarnation": (TakesAnyIncarnation, ["session.wrong_incarnation"]),
    "overlooks damage": (OverlooksDamage, ["frame.checksum_descriptor"]),
    "takes any width": (TakesAnyWidth, ["setting.hidden_size"]),
    "refuses other minors": (RefusesOtherMinors, ["setting.minor"]),
    "overlooks foreign credits": (OverlooksForeignCredits, ["credits.wrong_channel"]),
    "overlooks silence": (OverlooksSilence, ["carrier.silence_ends"]),
    "refuses cancels": (RefusesCancels, ["session.cancel_of_nothing"]),
    "loses slots of cancelled": (LosesSlotsOfCancelled, ["session.cancel_in_flight"]),
    "serves every layer": (ServesEveryLayer, ["value.layer_last"]),
    "serves dense layers": (ServesDenseLayers, ["value.layer_dense"]),
    "answers in another dtype": (AnswersInAnotherDtype, ["request.one_row"]),
    "refuses over request": (RefusesOverRequest, ["frame.magic"]),
    "another word than bye": (AnotherWordThanBye, ["session.goodbye"]),
}
