// Frames that are none, or damaged, or break a rule of header and descriptors (docs/protocol.md, section 1),
// in a session that is served: it is refused and ends.
#include <fmt/format.h>

#include "cli/conformance/case.h"

namespace tandem::conformance {
namespace {

using Change = std::function<void(RawFrame&)>;
using Damage = std::function<void(Bytes&)>;

// A request with a lie in it, or bytes that were changed afterwards.
Case broken(const std::string& name, const std::string& what, Change change, Damage damage = {}) {
  return {"frame." + name, what + " ends the session with refuse",
          [change = std::move(change), damage = std::move(damage)](Lab& lab) -> Status {
            TANDEM_ASSIGN(const auto client, Client::serving(lab));
            RawFrame request = client->request(2);
            if (change) change(request);
            Bytes bytes = request.encode();
            if (damage) damage(bytes);
            TANDEM_TRY(client->wire().send_message(Channel::request, bytes));
            return expect_refuse(*client);
          }};
}

Change lie(std::function<void(FrameHeader&, std::vector<Descriptor>&)> how) {
  return [how = std::move(how)](RawFrame& frame) { frame.lie = how; };
}
Change header(std::function<void(FrameHeader&)> how) {
  return [how = std::move(how)](RawFrame& frame) { how(frame.header); };
}
Change first(std::function<void(Descriptor&)> how) {
  return lie([how = std::move(how)](FrameHeader&, std::vector<Descriptor>& table) { how(table.front()); });
}

RawPayload foreign(uint16_t role, uint32_t flags) {
  return {.role = static_cast<PayloadRole>(role),
          .dtype = DType::u8,
          .rows = 1,
          .cols = 4,
          .data = Bytes(4),
          .flags = flags};
}

Case served(const std::string& name, const std::string& what, Change change) {
  return {"frame." + name, what + " is served", [change = std::move(change)](Lab& lab) -> Status {
            TANDEM_ASSIGN(const auto client, Client::serving(lab));
            RawFrame request = client->request(2);
            change(request);
            TANDEM_TRY(client->send(request));
            TANDEM_ASSIGN([[maybe_unused]] const Received reply, expect_reply(*client, request));
            return {};
          }};
}

Status ends_after_refuse(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  Bytes bytes = client->request(2).encode();
  bytes[32] ^= std::byte{1};
  TANDEM_TRY(client->wire().send_message(Channel::request, bytes));
  TANDEM_TRY(expect_refuse(*client));
  (void)client->send(client->request(2));  // nobody is served behind a refusal; it may have ended already
  return expect_end(*client);
}

}  // namespace

void add_frame_cases(std::vector<Case>& cases) {
  cases.push_back({"frame.end", "a refused session serves nothing more and ends", ends_after_refuse});
  cases.push_back(broken("magic", "a message that does not begin with TAFD", {},
                         [](Bytes& b) { b[0] = std::byte{'X'}; }));
  cases.push_back(broken("checksum_header", "a header that was changed on the way", {},
                         [](Bytes& b) { b[28] ^= std::byte{4}; }));
  cases.push_back(broken("checksum_descriptor", "a descriptor that was changed on the way", {},
                         [](Bytes& b) { b[64 + 8] ^= std::byte{1}; }));
  cases.push_back(broken("half", "half a frame", {}, [](Bytes& b) { b.resize(b.size() / 2); }));
  cases.push_back(broken("half_header", "half a header", {}, [](Bytes& b) { b.resize(32); }));
  cases.push_back(broken("one_byte", "a message of one byte", {}, [](Bytes& b) { b.resize(1); }));
  cases.push_back(broken("tail", "bytes behind the last payload",
                         lie([](FrameHeader& h, std::vector<Descriptor>&) { h.total_bytes += 64; }),
                         [](Bytes& b) { b.resize(b.size() + 64); }));
  cases.push_back(broken("total_bytes", "a length that is not the message's",
                         lie([](FrameHeader& h, std::vector<Descriptor>&) { h.total_bytes += 1; })));
  cases.push_back(broken("major", "another major version", header([](FrameHeader& h) { h.major = 2; })));
  cases.push_back(broken("header_bytes", "a header of another size",
                         header([](FrameHeader& h) { h.header_bytes = 128; })));
  cases.push_back(
      broken("kind", "an unknown kind", header([](FrameHeader& h) { h.kind = static_cast<FrameKind>(99); })));
  cases.push_back(broken("descriptor_count", "more than eight descriptors",
                         lie([](FrameHeader& h, std::vector<Descriptor>&) { h.descriptors = 9; })));
  cases.push_back(broken("flags", "an unknown header flag", header([](FrameHeader& h) { h.flags = 4; })));
  cases.push_back(broken("by_map_alone", "by_map without partial",
                         header([](FrameHeader& h) { h.flags = kFrameByMap; })));
  cases.push_back(broken("rows_over_capacity", "more rows than the capacity",
                         header([](FrameHeader& h) { h.capacity = 1; })));
  cases.push_back(broken("capacity", "a capacity above 64", header([](FrameHeader& h) { h.capacity = 65; })));
  cases.push_back(broken("row_class", "an unknown class", header([](FrameHeader& h) { h.row_class = 4; })));
  cases.push_back(broken("tile", "tile 1 of 1", header([](FrameHeader& h) { h.tile = 1; })));
  cases.push_back(broken("tiles", "tile 0 of 0", header([](FrameHeader& h) { h.tiles = 0; })));
  cases.push_back(broken("role_unknown", "a role that must be understood and is not",
                         [](RawFrame& f) { f.payloads.push_back(foreign(99, kMustUnderstand)); }));
  cases.push_back(broken("role_twice", "the same role twice",
                         [](RawFrame& f) { f.payloads.push_back(f.payloads.front()); }));
  cases.push_back(broken("role_here", "settings in a request", [](RawFrame& f) {
    f.payloads.push_back(text_payload(PayloadRole::settings, "a=b\n"));
  }));
  cases.push_back(
      broken("dtype", "an unknown dtype", first([](Descriptor& d) { d.dtype = static_cast<DType>(99); })));
  cases.push_back(
      broken("descriptor_flags", "an unknown descriptor flag", first([](Descriptor& d) { d.flags = 3; })));
  cases.push_back(broken("reserved", "reserved bytes that are not 0", {}, [](Bytes& b) {
    b[64 + 28] = std::byte{1};
    seal(b);
  }));
  cases.push_back(broken("stride", "rows that overlap", first([](Descriptor& d) { d.row_stride /= 2; })));
  cases.push_back(
      broken("bytes", "a length that is not rows times stride", first([](Descriptor& d) { d.bytes += 2; })));
  cases.push_back(
      broken("gap", "a payload later than it must be", first([](Descriptor& d) { d.offset += 64; })));
  cases.push_back(
      broken("overlap", "a payload over the descriptors", first([](Descriptor& d) { d.offset = 64; })));
  cases.push_back(
      broken("misaligned", "a payload between multiples of 64", first([](Descriptor& d) { d.offset += 1; })));
  cases.push_back(broken("huge", "a payload that goes on far behind the frame", first([](Descriptor& d) {
                           d.rows = 0x10000;
                           d.bytes = d.rows * d.row_stride;
                         })));
  cases.push_back(
      broken("block", "a block where no scale is", first([](Descriptor& d) { d.log2_block = 3; })));
  cases.push_back(served("role_optional", "a role that need not be understood",
                         [](RawFrame& f) { f.payloads.push_back(foreign(200, 0)); }));
  cases.push_back(
      served("minor", "a frame of another minor version", header([](FrameHeader& h) { h.minor = 9; })));
  cases.push_back(served("padded_rows", "a request whose rows have gaps", [](RawFrame& f) {
    RawPayload& rows = f.payloads.front();
    const size_t row = dtype_bytes(rows.dtype, rows.cols), gap = 64;
    Bytes data;
    for (uint32_t i = 0; i < rows.rows; ++i) {
      const auto begin = rows.data.begin() + static_cast<std::ptrdiff_t>(i * row);
      data.insert(data.end(), begin, begin + static_cast<std::ptrdiff_t>(row));
      data.resize(data.size() + gap, std::byte{0xee});
    }
    rows.row_stride = static_cast<uint32_t>(row + gap);
    rows.data = std::move(data);
  }));
}

}  // namespace tandem::conformance
