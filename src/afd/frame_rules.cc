#include "afd/frame_rules.h"

#include <fmt/format.h>

#include <array>
#include <initializer_list>

#include "moe/ffn_port.h"

namespace tandem {
namespace {

constexpr uint16_t kFirstRole = static_cast<uint16_t>(PayloadRole::activation);
constexpr uint16_t kLastRole = static_cast<uint16_t>(PayloadRole::shared_rows);
constexpr uint8_t kLastRowClass = static_cast<uint8_t>(RowClass::profile);

using RoleSet = uint32_t;
constexpr RoleSet bit(PayloadRole role) {
  return RoleSet{1} << static_cast<uint16_t>(role);
}

// Roles that may appear in a frame of a kind, and roles of which none may be missing.
struct KindRule {
  FrameKind kind;
  RoleSet allowed;
  RoleSet required;
};

constexpr RoleSet kRequestRoles = bit(PayloadRole::activation) | bit(PayloadRole::activation_scale) |
                                  bit(PayloadRole::token_ids) | bit(PayloadRole::expert_ids) |
                                  bit(PayloadRole::expert_weights) | bit(PayloadRole::shared_rows);
constexpr RoleSet kErrorRoles = bit(PayloadRole::error_code) | bit(PayloadRole::error_text);

constexpr std::array kKindRules = {
    KindRule{FrameKind::hello, bit(PayloadRole::settings), bit(PayloadRole::settings)},
    KindRule{FrameKind::hello_ack, bit(PayloadRole::settings) | bit(PayloadRole::pieces),
             bit(PayloadRole::settings) | bit(PayloadRole::pieces)},
    KindRule{FrameKind::refuse, kErrorRoles, kErrorRoles},
    KindRule{FrameKind::canary, kRequestRoles | bit(PayloadRole::output), 0},
    KindRule{FrameKind::canary_echo, kRequestRoles | bit(PayloadRole::output), 0},
    KindRule{FrameKind::ffn_request, kRequestRoles, bit(PayloadRole::activation)},
    KindRule{FrameKind::ffn_reply, bit(PayloadRole::output) | bit(PayloadRole::reply_times) | kErrorRoles,
             bit(PayloadRole::reply_times)},
    KindRule{FrameKind::cancel, 0, 0},
    KindRule{FrameKind::drain, 0, 0},
    KindRule{FrameKind::goodbye, 0, 0},
};

const KindRule* find_rule(FrameKind kind) {
  for (const KindRule& rule : kKindRules) {
    if (rule.kind == kind) return &rule;
  }
  return nullptr;
}

class Checker {
 public:
  Checker(const FrameHeader& header, std::span<const Descriptor> descriptors)
      : header_(header), descriptors_(descriptors) {}

  Status run() {
    const KindRule* rule = find_rule(header_.kind);
    if (rule == nullptr) {
      return make_error(ErrorCode::unsupported,
                        fmt::format("frame kind {} is unknown to protocol {}.{}",
                                    static_cast<uint16_t>(header_.kind), kProtocolMajor, kProtocolMinor));
    }
    TANDEM_TRY(check_header());
    RoleSet present = 0;
    for (const Descriptor& descriptor : descriptors_) {
      if (!known_role(descriptor.role)) {
        if ((descriptor.flags & kMustUnderstand) == 0) continue;
        return make_error(
            ErrorCode::unsupported,
            fmt::format("{}: payload role {} must be understood and is unknown to protocol {}.{}", kind(),
                        static_cast<uint16_t>(descriptor.role), kProtocolMajor, kProtocolMinor));
      }
      const RoleSet role = bit(descriptor.role);
      if ((present & role) != 0) return refuse(descriptor, "appears twice");
      if ((rule->allowed & role) == 0) return refuse(descriptor, "does not belong into a frame of this kind");
      present |= role;
      TANDEM_TRY(check_shape(descriptor));
    }
    for (uint16_t role = kFirstRole; role <= kLastRole; ++role) {
      if ((rule->required & ~present & (RoleSet{1} << role)) != 0) {
        return refuse_frame(fmt::format("{} is missing", payload_role_name(static_cast<PayloadRole>(role))));
      }
    }
    return check_pairs(present);
  }

 private:
  std::string kind() const { return std::string(frame_kind_name(header_.kind)); }

  Status refuse_frame(const std::string& what) const {
    return make_error(ErrorCode::invalid_argument, fmt::format("{}: {}", kind(), what));
  }
  Status refuse(const Descriptor& descriptor, const std::string& what) const {
    return refuse_frame(fmt::format("{} {}", payload_role_name(descriptor.role), what));
  }

  bool is_part() const { return (header_.flags & kFramePartial) != 0; }

  bool carries_rows() const {
    return header_.kind == FrameKind::ffn_request || header_.kind == FrameKind::ffn_reply ||
           header_.kind == FrameKind::canary || header_.kind == FrameKind::canary_echo;
  }

  Status check_header() const {
    if ((header_.flags & ~kKnownFrameFlags) != 0) {
      return refuse_frame(
          fmt::format("header flags {:#x}, known are {:#x}", header_.flags, kKnownFrameFlags));
    }
    if ((header_.flags & kFrameByMap) != 0 && !is_part()) {
      return refuse_frame("header flag by_map without partial");
    }
    if (header_.flags != 0 && !carries_rows() && header_.kind != FrameKind::cancel) {
      return refuse_frame(fmt::format("header flags {:#x} in a frame without rows", header_.flags));
    }
    if (header_.rows > header_.capacity) {
      return refuse_frame(fmt::format("rows {} exceed capacity {}", header_.rows, header_.capacity));
    }
    if (header_.capacity > kMaxTileRows) {
      return refuse_frame(
          fmt::format("capacity {}, a tile has at most {} rows", header_.capacity, kMaxTileRows));
    }
    if (header_.row_class > kLastRowClass) {
      return refuse_frame(fmt::format("row class {} is unknown", header_.row_class));
    }
    if (carries_rows() && header_.tile >= header_.tiles) {
      return refuse_frame(fmt::format("tile {} of {}", header_.tile, header_.tiles));
    }
    return {};
  }

  Status expect(const Descriptor& d, std::initializer_list<DType> dtypes, uint32_t rows, uint32_t min_cols,
                uint32_t max_cols) const {
    bool dtype_allowed = false;
    for (const DType dtype : dtypes) dtype_allowed = dtype_allowed || dtype == d.dtype;
    if (!dtype_allowed) return refuse(d, fmt::format("has dtype {}", dtype_name(d.dtype)));
    if (d.rows != rows) return refuse(d, fmt::format("has {} rows, expected {}", d.rows, rows));
    if (d.cols < min_cols || d.cols > max_cols) {
      return refuse(d, fmt::format("has {} columns, expected {} to {}", d.cols, min_cols, max_cols));
    }
    return {};
  }

  // Of what is read as it lies, whatever the session agreed on.
  Status expect_packed(const Descriptor& d, DType dtype, uint32_t rows, uint32_t min_cols,
                       uint32_t max_cols) const {
    TANDEM_TRY(expect(d, {dtype}, rows, min_cols, max_cols));
    if (d.row_stride == dtype_bytes(d.dtype, d.cols)) return {};
    return refuse(d, fmt::format("has a row stride of {}, expected rows without gaps", d.row_stride));
  }

  Status check_shape(const Descriptor& d) const {
    constexpr uint32_t kAnyCols = UINT32_MAX;
    if (d.log2_block != 0 && d.role != PayloadRole::activation_scale) {
      return refuse(d, fmt::format("has block 2^{}, only a scale has one", d.log2_block));
    }
    switch (d.role) {
      case PayloadRole::activation:
        if (d.dtype == DType::f8_e5m2) {
          return refuse(d, "has dtype f8_e5m2: too coarse for activations, send f8_e4m3 with scales or bf16");
        }
        return expect(d, {DType::bf16, DType::f32, DType::f8_e4m3, DType::i8}, header_.rows, 1, kAnyCols);
      case PayloadRole::activation_scale:
        return expect(d, {DType::f32, DType::f8_e8m0}, header_.rows, 1, kAnyCols);
      case PayloadRole::token_ids:
        return expect(d, {DType::i32}, header_.rows, 1, 1);
      case PayloadRole::expert_ids:
        return expect(d, {DType::i32}, header_.rows, 1, UINT16_MAX);
      case PayloadRole::expert_weights:
        return expect(d, {DType::f32}, header_.rows, 1, UINT16_MAX);
      case PayloadRole::output:
        return expect(d, {DType::bf16, DType::f32, DType::f64}, header_.rows, 1, kAnyCols);
      case PayloadRole::reply_times:
        return expect_packed(d, DType::u32, 1, 4, 4);
      case PayloadRole::error_code:
        return expect_packed(d, DType::u32, 1, 1, 1);
      case PayloadRole::error_text:
        return expect_packed(d, DType::u8, 1, 0, kMaxErrorTextBytes);
      case PayloadRole::settings:
        return expect_packed(d, DType::u8, 1, 0, kAnyCols);
      case PayloadRole::pieces:
        return expect_packed(d, DType::u32, d.rows, 6, 6);
      case PayloadRole::shared_rows:
        return expect(d, {DType::u8}, header_.rows, 1, 1);
    }
    return {};
  }

  const Descriptor* find(PayloadRole role) const {
    for (const Descriptor& descriptor : descriptors_) {
      if (descriptor.role == role) return &descriptor;
    }
    return nullptr;
  }

  Status check_pairs(RoleSet present) const {
    const bool token_ids = (present & bit(PayloadRole::token_ids)) != 0;
    const bool ids = (present & bit(PayloadRole::expert_ids)) != 0;
    const bool weights = (present & bit(PayloadRole::expert_weights)) != 0;
    const bool output = (present & bit(PayloadRole::output)) != 0;
    const bool activation = (present & bit(PayloadRole::activation)) != 0;
    if (token_ids && (ids || weights))
      return refuse_frame("token_ids beside a routing, exactly one may be there");
    if (ids != weights) {
      return refuse_frame(ids ? "expert_ids without expert_weights" : "expert_weights without expert_ids");
    }
    if (ids && find(PayloadRole::expert_ids)->cols != find(PayloadRole::expert_weights)->cols) {
      return refuse_frame(fmt::format("{} expert_ids a row beside {} expert_weights",
                                      find(PayloadRole::expert_ids)->cols,
                                      find(PayloadRole::expert_weights)->cols));
    }
    if ((present & kErrorRoles) != 0 && (present & kErrorRoles) != kErrorRoles) {
      return refuse_frame("error_code and error_text come together");
    }
    if (header_.kind == FrameKind::ffn_reply && output == ((present & kErrorRoles) != 0)) {
      return refuse_frame("carries exactly one of output and error");
    }
    if ((header_.kind == FrameKind::canary || header_.kind == FrameKind::canary_echo) &&
        output == activation) {
      return refuse_frame("carries exactly one of activation and output");
    }
    if (activation && is_part() && !ids) return refuse_frame("a part (flag partial) without a routing");
    if ((present & bit(PayloadRole::shared_rows)) != 0 &&
        (!is_part() || (header_.flags & kFrameByMap) != 0)) {
      return refuse_frame("shared_rows belongs to a part (flag partial, not by_map)");
    }
    if (output && (present & kRequestRoles) != 0) return refuse_frame("output beside payloads of a request");
    TANDEM_TRY(check_scale());
    const Descriptor* rows = find(PayloadRole::activation);
    if (rows != nullptr && (rows->dtype == DType::f8_e4m3 || rows->dtype == DType::i8) && !ids) {
      return refuse_frame(
          fmt::format("{} activation without a routing: a router must see the rows before they are rounded",
                      dtype_name(rows->dtype)));
    }
    return {};
  }

  Status check_scale() const {
    const Descriptor* activation = find(PayloadRole::activation);
    const Descriptor* scale = find(PayloadRole::activation_scale);
    if (activation == nullptr) {
      return scale == nullptr ? Status{} : refuse_frame("activation_scale without activation");
    }
    const bool quantised = activation->dtype == DType::f8_e4m3 || activation->dtype == DType::i8;
    const std::string_view dtype = dtype_name(activation->dtype);
    if (!quantised) {
      return scale == nullptr ? Status{}
                              : refuse_frame(fmt::format("activation_scale beside {} activation", dtype));
    }
    if (scale == nullptr) return refuse_frame(fmt::format("{} activation without activation_scale", dtype));
    uint32_t block = activation->cols;  // int8: one scale a row, its block field is 0
    if (activation->dtype == DType::i8) {
      if (scale->dtype != DType::f32 || scale->log2_block != 0) {
        return refuse_frame("i8 activation takes one f32 scale a row");
      }
    } else {
      const uint8_t wanted = scale->dtype == DType::f32 ? 7 : 5;
      if (scale->log2_block != wanted) {
        return refuse_frame(fmt::format("{} scales cover blocks of 2^{} values, not 2^{}",
                                        dtype_name(scale->dtype), wanted, scale->log2_block));
      }
      block = uint32_t{1} << wanted;
    }
    const uint32_t wanted_cols = activation->cols / block + (activation->cols % block != 0 ? 1 : 0);
    if (scale->cols != wanted_cols) {
      return refuse_frame(
          fmt::format("activation_scale has {} columns, {} values a row in blocks of {} need {}", scale->cols,
                      activation->cols, block, wanted_cols));
    }
    return {};
  }

  const FrameHeader& header_;
  std::span<const Descriptor> descriptors_;
};

}  // namespace

bool known_role(PayloadRole role) {
  const auto value = static_cast<uint16_t>(role);
  return value >= kFirstRole && value <= kLastRole;
}

Status check_frame_rules(const FrameHeader& header, std::span<const Descriptor> descriptors) {
  return Checker(header, descriptors).run();
}

}  // namespace tandem
