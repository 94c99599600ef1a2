#include "model/load_plan_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "checkpoint/table_reader.h"
#include "moe/expert_slice.h"

namespace tandem {
namespace {

// Rows converted at a time: they stay in a worker's L2 between reading and packing.
constexpr uint64_t kTaskBytes = uint64_t{1} << 20;
// KernelTable::pack takes ranges that start at a multiple of this.
constexpr uint32_t kPackRows = 64;

// Only of a claim that this rank holds: those have readers.
const MatrixReader& reader_of(const ResolvedTensors& tensors, size_t claim) {
  return *tensors.readers[claim];  // NOLINT(bugprone-unchecked-optional-access)
}

// The format that keeps a tensor's codes as they are stored; none: it has no codes, or in blocks that no
// kernel knows.
std::optional<PackFormat> format_of_codes(const MatrixReader& reader) {
  switch (reader.codes()) {
    case StoredCodes::none:
      return std::nullopt;
    case StoredCodes::fp4:
      return PackFormat::mxfp4;
    case StoredCodes::fp8:
      break;
  }
  if (reader.block_cols() == scale_block_cols(PackFormat::fp8_block)) return PackFormat::fp8_block;
  const bool mx =
      reader.block_cols() == scale_block_cols(PackFormat::mxfp8) && reader.scale_dtype() == DType::f8_e8m0;
  return mx ? std::optional(PackFormat::mxfp8) : std::nullopt;
}

// A source's rows among rows of the packed weight.
struct Stretch {
  const SourceRows& source;
  uint64_t from, to;    // rows of the source's tensor
  uint64_t begin, end;  // the same rows of the packed weight
};

// The columns of a source that are packed.
MatrixReader::Columns columns_of(const PackItem& item, const SourceRows& source) {
  const uint64_t begin = source.col_begin + item.col_begin;
  return {begin, begin + item.cols};
}

// Gives back the pages of what was packed. All tasks of an item read from every page of a turned matrix, so
// the last one does it; one that is still under way reads those pages again.
void release(const MatrixReader& reader, const PackItem& item, const Stretch& part) {
  if (!reader.is_turned() || part.end == item.rows) reader.drop_rows(part.from, part.to);
}

// Calls `each` for what rows [row_begin, row_end) of the packed weight take from each source, in order.
template <class Each>
Status for_each_stretch(const PackItem& item, uint32_t row_begin, uint32_t row_end, Each each) {
  uint64_t first = 0;  // row of the packed weight where the source begins
  for (const SourceRows& source : item.sources) {
    const uint64_t begin = std::max<uint64_t>(row_begin, first),
                   end = std::min<uint64_t>(row_end, first + source.count);
    if (begin < end) {
      TANDEM_TRY(each(Stretch{source, source.begin + begin - first, source.begin + end - first, begin, end}));
    }
    first += source.count;
  }
  return {};
}

}  // namespace

LoadRun::LoadRun(const LoadPlan& plan, const ResolvedTensors& tensors, const KernelTable& table,
                 const HeldParts& held, DType compute_dtype, WeightStorage storage)
    : plan_(plan),
      tensors_(tensors),
      table_(table),
      held_(held),
      compute_dtype_(compute_dtype),
      storage_(storage),
      absorbed_(plan.claims().size()),
      quantizer_(table, plan.claims()) {
  const uint64_t element = dtype_bytes(compute_dtype, 1);
  for (uint32_t i = 0; i < plan.copies().size(); ++i) {
    const CopyItem& item = plan.copies()[i];
    const TensorClaim& claim = plan.claims()[item.claim];
    if (!is_held(claim, held)) continue;
    const MatrixReader& reader = reader_of(tensors, item.claim);
    const uint64_t bytes = claim.elements() * (item.bits != nullptr ? element : sizeof(float));
    role_bytes_[static_cast<size_t>(claim.role)] += bytes;
    resident_bytes_ += bytes;
    work_bytes_ += claim.elements() * element;
    add_tasks(i, true, static_cast<uint32_t>(reader.rows()), static_cast<uint32_t>(reader.cols()));
  }
  for (const ExpertBiasItem& item : plan.expert_biases()) {
    if (!is_held(plan.claims()[item.claim].role, held) || !held.share.contains(item.expert)) continue;
    const uint64_t count = item.intermediate != 0
                               ? 2 * uint64_t{held.share.rows.within(item.intermediate).size()}
                           : held.share.rows.begin == 0 ? reader_of(tensors, item.claim).cols()
                                                        : 0;
    const uint64_t bytes = count * sizeof(float);
    role_bytes_[static_cast<size_t>(WeightRole::experts)] += bytes;
    resident_bytes_ += bytes;
  }
  for (size_t i = 0; i < plan.tables().size(); ++i) {
    if (tensors.tables[i] == nullptr) continue;
    const TensorClaim& claim = plan.claims()[plan.tables()[i].claim];
    const uint64_t bytes = claim.elements() * sizeof(int32_t);
    role_bytes_[static_cast<size_t>(claim.role)] += bytes;
    resident_bytes_ += bytes;
  }
  for (const PackItem& item : plan.packs()) {
    if (item.transposed) absorbed_[item.sources.front().claim] = true;
  }
  std::vector<bool> dequantized(plan.claims().size());
  for (const PackItem& whole : plan.packs()) {
    if (!is_held(whole, held)) continue;
    const auto i = static_cast<uint32_t>(packs_.size());
    Pack& pack = packs_.emplace_back(Pack{held_part(whole, held), plain_format(), 0, 0, false});
    const PackItem& item = pack.item;
    const std::optional<PackFormat> quantized = quantized_as(item);
    pack.quantized = quantized.has_value();
    pack.format = quantized ? *quantized : format_of(item);
    if (is_coded(pack.format)) pack.phase = item.col_begin % scale_block_cols(pack.format);
    if (pack.quantized) {
      for (const SourceRows& source : item.sources) {
        scratch_bytes_ = std::max(scratch_bytes_, LoadQuantizer::scratch_bytes(
                                                      pack.format, reader_of(tensors, source.claim).cols()));
      }
    } else if (!is_coded(pack.format)) {
      for (const SourceRows& source : item.sources) {
        if (reader_of(tensors, source.claim).codes() != StoredCodes::none) dequantized[source.claim] = true;
      }
    }
    pack.bytes = table.packed_bytes(pack.format, item.arrangement, item.rows, pack.phase + item.cols);
    role_bytes_[static_cast<size_t>(item.role)] += pack.bytes;
    format_bytes_[static_cast<size_t>(pack.format)] += pack.bytes;
    resident_bytes_ += pack.bytes;
    work_bytes_ += item.rows * row_bytes(pack);
    if (item.transposed) {
      tasks_.push_back({i, false, 0, item.rows});
      scratch_bytes_ = std::max(scratch_bytes_, uint64_t{2} * item.rows * item.cols * sizeof(float));
    } else {
      add_tasks(i, false, item.rows, item.cols);
    }
  }
  dequantized_ = static_cast<uint32_t>(std::ranges::count(dequantized, true));
}

uint64_t LoadRun::row_bytes(const Pack& pack) const {
  if (pack.quantized) return dtype_bytes(compute_dtype_, pack.item.cols);
  switch (pack.format) {
    case PackFormat::fp8_block:
    case PackFormat::mxfp8:
      return pack.item.cols;
    case PackFormat::mxfp4:
      return (uint64_t{pack.item.cols} + 1) / 2;
    default:
      return dtype_bytes(compute_dtype_, pack.item.cols);
  }
}

std::optional<PackFormat> LoadRun::quantized_as(const PackItem& item) const {
  const std::optional<PackFormat> format = quantized_format(storage_);
  if (!format || item.transposed) return std::nullopt;
  // In bf16 it would be a third of what a step of one row reads of a small model in mxfp4.
  const bool head = item.role == WeightRole::head;
  for (const SourceRows& source : item.sources) {
    // Where released fp8 models keep bf16 it is because the part is sensitive.
    const TensorClaim& claim = plan_.claims()[source.claim];
    const bool wanted = head || claim.block_quantized || claim.role == WeightRole::experts;
    if (!wanted || absorbed_[source.claim]) return std::nullopt;
    if (reader_of(tensors_, source.claim).codes() != StoredCodes::none) return std::nullopt;
  }
  return head ? quantized_head_format(*format) : *format;
}

Status LoadRun::check_storage(const ModelConfig& config) const {
  const std::optional<PackFormat> wanted = quantized_format(storage_);
  if (!wanted) return {};
  const std::string_view name = pack_format_name(*wanted);
  for (const Pack& pack : packs_) {
    for (const SourceRows& source : pack.item.sources) {
      const MatrixReader& reader = reader_of(tensors_, source.claim);
      if (reader.codes() == StoredCodes::none || format_of_codes(reader) == wanted) continue;
      return make_error(
          ErrorCode::unsupported,
          fmt::format(
              "{}: tensor '{}' is stored as {} codes and cannot be quantised to {}; engine.weights: auto "
              "keeps it, and a bf16 copy of the model can be quantised",
              reader.tensor().file->path(), plan_.claims()[source.claim].tensor,
              reader.codes() == StoredCodes::fp8 ? "fp8" : "fp4", name));
    }
    if (pack.format != PackFormat::int8) continue;
    const TensorClaim& claim = plan_.claims()[pack.item.sources.front().claim];
    if (pack.item.cols > kInt8MostCols) {
      return make_error(
          ErrorCode::unsupported,
          fmt::format("tensor '{}' has {} columns and int8 sums at most {}; engine.weights: fp8 "
                      "would do",
                      claim.tensor, pack.item.cols, kInt8MostCols));
    }
    // An activation scale covers a granule, which is made of steps of four columns.
    if (slice_granule(config.moe_intermediate_size) % 4 != 0) {
      return make_error(
          ErrorCode::unsupported,
          fmt::format("experts of {} intermediate rows are too small for int8 weights, 16 would "
                      "do; engine.weights: fp8 as well",
                      config.moe_intermediate_size));
    }
  }
  return {};
}

PackFormat LoadRun::format_of(const PackItem& item) const {
  if (compute_dtype_ == DType::f32 || storage_ == WeightStorage::dequantized || item.transposed)
    return plain_format();
  const auto stored = [&](const SourceRows& source) {
    return format_of_codes(reader_of(tensors_, source.claim)).value_or(plain_format());
  };
  const PackFormat first = stored(item.sources.front());
  const bool alike =
      std::ranges::all_of(item.sources, [&](const SourceRows& s) { return stored(s) == first; });
  return alike ? first : plain_format();
}

void LoadRun::add_tasks(uint32_t item, bool copy, uint32_t rows, uint32_t cols) {
  const uint64_t row_bytes = std::max<uint64_t>(1, uint64_t{cols} * dtype_bytes(compute_dtype_, 1));
  const uint64_t step = std::max<uint64_t>(1, kTaskBytes / row_bytes / kPackRows) * kPackRows;
  for (uint64_t begin = 0; begin < rows; begin += step) {
    const uint64_t end = std::min<uint64_t>(rows, begin + step);
    tasks_.push_back({item, copy, static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
    // Rows of the compute dtype, or scales: at most one float32 for each 32 columns begun, and one more.
    const uint64_t scale_bytes = (cols / kFp4BlockCols + 2) * sizeof(float);
    if (!copy) scratch_bytes_ = std::max(scratch_bytes_, (end - begin) * std::max(row_bytes, scale_bytes));
  }
}

void LoadRun::describe_packed() {
  for (const Pack& pack : packs_) {
    const PackItem& item = pack.item;
    *item.out = {.format = pack.format,
                 .arrangement = item.arrangement,
                 .rows = item.rows,
                 .cols = item.cols,
                 .data = nullptr,
                 .bytes = pack.bytes,
                 .col_phase = pack.phase};
  }
}

void LoadRun::size_copies() {
  for (const CopyItem& item : plan_.copies()) {
    const TensorClaim& claim = plan_.claims()[item.claim];
    if (!is_held(claim, held_)) continue;
    if (item.bits != nullptr && compute_dtype_ == DType::bf16) {
      item.bits->resize(claim.elements());
    } else {
      item.values->resize(claim.elements());
    }
  }
}

// A few megabytes at most, from the files even when there is a cache.
void LoadRun::read_expert_biases() {
  std::vector<float> row;
  for (const ExpertBiasItem& item : plan_.expert_biases()) {
    if (!is_held(plan_.claims()[item.claim].role, held_) || !held_.share.contains(item.expert)) continue;
    const MatrixReader& reader = reader_of(tensors_, item.claim);
    row.resize(reader.cols());
    reader.read_f32(item.expert, item.expert + 1, row.data());
    if (item.intermediate == 0) {
      if (held_.share.rows.begin == 0) *item.out = row;
      continue;
    }
    const RowRange rows = held_.share.rows.within(item.intermediate);
    item.out->clear();
    for (const uint32_t half : {0u, 1u}) {  // gate, then up
      for (uint32_t i = rows.begin; i < rows.end; ++i) item.out->push_back(row[size_t{2} * i + half]);
    }
  }
}

// One buffer for the packed weights of each layer.
Result<void> LoadRun::place(ModelWeights& weights) {
  describe_packed();
  std::map<uint32_t, uint64_t> layer_bytes;
  for (const Pack& pack : packs_) layer_bytes[pack.item.layer] += pack.bytes;
  std::map<uint32_t, std::byte*> next;
  for (const auto& [layer, bytes] : layer_bytes) {
    TANDEM_ASSIGN(OwnedBuffer buffer, OwnedBuffer::allocate(bytes));
    next[layer] = buffer.data();
    weights.storage.push_back(std::move(buffer));
  }
  for (const Pack& pack : packs_) {
    std::byte*& at = next[pack.item.layer];
    if (binder_ != nullptr) binder_->bind(static_cast<size_t>(&pack - packs_.data()), at);
    pack.item.out->data = at;
    at += pack.bytes;
  }
  size_copies();
  return {};
}

std::vector<OwnedWeight> LoadRun::owned_weights() const {
  std::vector<OwnedWeight> weights;
  weights.reserve(packs_.size());
  for (const Pack& pack : packs_) weights.push_back({pack.item.layer, pack.item.expert, pack.bytes});
  return weights;
}

Result<void> LoadRun::load(ModelWeights& weights, ThreadPool& pool, LoadProgress& progress) {
  for (size_t i = 0; i < plan_.tables().size(); ++i) {
    if (tensors_.tables[i] == nullptr) continue;
    const TableItem& item = plan_.tables()[i];
    TANDEM_ASSIGN(*item.out, read_table(*tensors_.tables[i], item.limit));
  }
  TANDEM_TRY(place(weights));
  read_expert_biases();
  std::vector<OwnedBuffer> scratch;
  for (int worker = 0; worker < pool.threads(); ++worker) {
    TANDEM_ASSIGN(OwnedBuffer buffer, OwnedBuffer::allocate(scratch_bytes_));
    scratch.push_back(std::move(buffer));
  }
  std::mutex mutex;
  Status failed;  // of the first task that did; the rest is not run
  std::atomic<bool> stop = false;
  pool.run(tasks_.size(), [&](size_t task, int worker) {
    if (stop.load(std::memory_order_relaxed)) return;
    const Result<uint64_t> done = run(tasks_[task], scratch[static_cast<size_t>(worker)].data());
    if (done) return progress.add(*done);
    const std::lock_guard lock(mutex);
    if (failed) failed = std::unexpected(done.error());
    stop.store(true, std::memory_order_relaxed);
  });
  progress.finish();
  TANDEM_TRY(failed);
  weights.resident_bytes = resident_bytes_;
  weights.quantized = quantizer_.report();
  return {};
}

Result<uint64_t> LoadRun::run(const Task& task, std::byte* scratch) {
  if (task.copy) return copy_rows(plan_.copies()[task.item], task.row_begin, task.row_end);
  const Pack& pack = packs_[task.item];
  if (pack.quantized) return pack_quantized(pack, task.row_begin, task.row_end, scratch);
  if (is_coded(pack.format)) return pack_codes(pack, task.row_begin, task.row_end, scratch);
  return pack.item.transposed ? pack_transposed(pack.item, scratch)
                              : pack_rows(pack.item, task.row_begin, task.row_end, scratch);
}

Result<uint64_t> LoadRun::pack_codes(const Pack& pack, uint32_t row_begin, uint32_t row_end,
                                     std::byte* scratch) const {
  const PackItem& item = pack.item;
  const uint32_t block = scale_block_cols(pack.format);
  const size_t blocks = (pack.phase + item.cols + block - 1) / block;
  const Status packed = for_each_stretch(item, row_begin, row_end, [&](const Stretch& part) -> Status {
    const MatrixReader& reader = reader_of(tensors_, part.source.claim);
    const MatrixReader::Columns columns = columns_of(item, part.source);
    TANDEM_TRY(reader.check_scales(part.from, part.to));
    if (pack.format == PackFormat::fp8_block) {
      reader.read_f32_scales(part.from, part.to, reinterpret_cast<float*>(scratch), columns);
    } else {
      reader.read_e8m0_scales(part.from, part.to, reinterpret_cast<uint8_t*>(scratch), columns);
    }
    const CodedRows rows = {reader.code_row(part.from, columns.begin), reader.row_bytes(), scratch, blocks};
    const PackFault fault = table_.pack_coded(
        pack.format, item.arrangement, item.rows, item.cols, pack.phase, static_cast<uint32_t>(part.begin),
        static_cast<uint32_t>(part.end), rows, const_cast<std::byte*>(item.out->data));
    if (fault != PackFault::none) {
      return make_error(ErrorCode::data_loss,
                        fmt::format("{}: tensor '{}' {} and cannot stay as it is stored; "
                                    "engine.weights: dequantized would do",
                                    reader.tensor().file->path(), plan_.claims()[part.source.claim].tensor,
                                    pack_fault_text(fault)));
    }
    release(reader, item, part);
    return {};
  });
  TANDEM_TRY(packed);
  return uint64_t{row_end - row_begin} * row_bytes(pack);
}

Result<uint64_t> LoadRun::pack_quantized(const Pack& pack, uint32_t row_begin, uint32_t row_end,
                                         std::byte* scratch) {
  const PackItem& item = pack.item;
  const Status packed = for_each_stretch(item, row_begin, row_end, [&](const Stretch& part) -> Status {
    const MatrixReader& reader = reader_of(tensors_, part.source.claim);
    const MatrixReader::Columns columns = columns_of(item, part.source);
    for (uint64_t row = 0; row < part.to - part.from;) {
      // To the end of a panel.
      const uint64_t begin = part.begin + row;
      const uint64_t count = std::min(LoadQuantizer::kRows - begin % LoadQuantizer::kRows, part.end - begin);
      TANDEM_ASSIGN(const CodedRows rows,
                    quantizer_.quantize(reader, part.source.claim, pack.format, part.from + row,
                                        part.from + row + count, columns, scratch));
      const PackFault fault = table_.pack_coded(
          pack.format, item.arrangement, item.rows, item.cols, pack.phase, static_cast<uint32_t>(begin),
          static_cast<uint32_t>(begin + count), rows, const_cast<std::byte*>(item.out->data));
      if (fault != PackFault::none) {
        return make_error(ErrorCode::data_loss,
                          fmt::format("{}: tensor '{}', quantised to {}, {}; engine.weights: auto would do",
                                      reader.tensor().file->path(), plan_.claims()[part.source.claim].tensor,
                                      pack_format_name(pack.format), pack_fault_text(fault)));
      }
      row += count;
    }
    release(reader, item, part);
    return {};
  });
  TANDEM_TRY(packed);
  return uint64_t{row_end - row_begin} * row_bytes(pack);
}

Result<uint64_t> LoadRun::pack_rows(const PackItem& item, uint32_t row_begin, uint32_t row_end,
                                    std::byte* scratch) const {
  const uint64_t row_bytes = item.cols * dtype_bytes(compute_dtype_, 1);
  std::byte* out = scratch;
  const Status packed = for_each_stretch(item, row_begin, row_end, [&](const Stretch& part) -> Status {
    const MatrixReader& reader = reader_of(tensors_, part.source.claim);
    const MatrixReader::Columns columns = columns_of(item, part.source);
    TANDEM_TRY(reader.check_scales(part.from, part.to));
    if (compute_dtype_ == DType::f32) {
      reader.read_f32(part.from, part.to, reinterpret_cast<float*>(out), columns);
    } else {
      reader.read_bf16(part.from, part.to, reinterpret_cast<uint16_t*>(out), columns);
    }
    release(reader, item, part);
    out += (part.end - part.begin) * row_bytes;
    return {};
  });
  TANDEM_TRY(packed);
  table_.pack(plain_format(), item.arrangement, item.rows, item.cols, row_begin, row_end, compute_dtype_,
              scratch, const_cast<std::byte*>(item.out->data));
  return (row_end - row_begin) * row_bytes;
}

Result<uint64_t> LoadRun::pack_transposed(const PackItem& item, std::byte* scratch) const {
  const SourceRows& source = item.sources.front();
  const MatrixReader& reader = reader_of(tensors_, source.claim);
  const size_t count = size_t{item.rows} * item.cols;
  float* stored = reinterpret_cast<float*>(scratch);  // [cols, rows] of the packed weight
  float* turned = stored + count;                     // [rows, cols]
  TANDEM_TRY(reader.check_scales(source.begin, source.begin + source.count));
  reader.read_f32(source.begin, source.begin + source.count, stored);
  reader.drop_rows(source.begin, source.begin + source.count);
  for (uint32_t col = 0; col < item.cols; ++col) {
    for (uint32_t row = 0; row < item.rows; ++row) {
      turned[size_t{row} * item.cols + col] = stored[size_t{col} * item.rows + row];
    }
  }
  table_.pack(plain_format(), item.arrangement, item.rows, item.cols, 0, item.rows, DType::f32, turned,
              const_cast<std::byte*>(item.out->data));
  return count * dtype_bytes(compute_dtype_, 1);
}

Result<uint64_t> LoadRun::copy_rows(const CopyItem& item, uint32_t row_begin, uint32_t row_end) const {
  const MatrixReader& reader = reader_of(tensors_, item.claim);
  const uint64_t first = row_begin * reader.cols();
  TANDEM_TRY(reader.check_scales(row_begin, row_end));
  if (item.bits != nullptr && compute_dtype_ == DType::bf16) {
    reader.read_bf16(row_begin, row_end, item.bits->data() + first);
  } else {
    reader.read_f32(row_begin, row_end, item.values->data() + first);
  }
  reader.drop_rows(row_begin, row_end);
  return (row_end - row_begin) * reader.cols() * dtype_bytes(compute_dtype_, 1);
}

}  // namespace tandem
