// Dense products of oneDNN, the library behind PyTorch's and vLLM's on CPUs, with weights packed beforehand
// (built outside this tree; README.md has the command). Prints "ready", then for each line "DTYPE ROWS OUT
// IN" on standard input, DTYPE bf16 or int8, measures out[ROWS, OUT] = in[ROWS, IN] * weights[IN, OUT] and
// prints a line of JSON. The weights are copies that do not fit the caches, taken in turn, as the layers of a
// model are.
//   onednn_bench     (threads: OMP_NUM_THREADS)
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using dnnl::memory;

constexpr double kWeightBytes = 256e6;  // several times a last-level cache
constexpr double kMinSeconds = 0.3;     // of one measurement

struct Product {
  memory::data_type input, weights, output;
  memory::dim rows, out, in;
};

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Small whole numbers, exact in both formats, none of them denormal or zero throughout.
void fill(const memory& into, memory::data_type type, size_t count) {
  uint32_t state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525 + 1013904223;
    const int value = static_cast<int>(state >> 24) % 7 - 3;
    if (type == memory::data_type::bf16) {
      const float exact = static_cast<float>(value);
      uint32_t bits;
      std::memcpy(&bits, &exact, sizeof bits);
      static_cast<uint16_t*>(into.get_data_handle())[i] = static_cast<uint16_t>(bits >> 16);
    } else {
      static_cast<int8_t*>(into.get_data_handle())[i] =
          static_cast<int8_t>(value + 3 * (type == memory::data_type::u8));
    }
  }
}

double gigaflops(const Product& product) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  using tag = memory::format_tag;
  const memory::desc input({product.rows, product.in}, product.input, tag::ab);
  const memory::desc any({product.in, product.out}, product.weights, tag::any);
  const memory::desc plain({product.in, product.out}, product.weights, tag::ab);
  const memory::desc output({product.rows, product.out}, product.output, tag::ab);
  const dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(input, any, output), engine);
  const dnnl::matmul matmul(plan);

  memory from(input, engine), to(output, engine), unpacked(plain, engine);
  fill(from, product.input, static_cast<size_t>(product.rows * product.in));
  fill(unpacked, product.weights, static_cast<size_t>(product.in * product.out));
  std::vector<memory> packed;
  const double bytes = static_cast<double>(plan.weights_desc().get_size());
  for (double held = 0; held < kWeightBytes; held += bytes) {
    packed.emplace_back(plan.weights_desc(), engine);
    dnnl::reorder(unpacked, packed.back()).execute(stream, unpacked, packed.back());
  }
  stream.wait();

  const auto run = [&](size_t i) {
    const std::unordered_map<int, memory> arguments{
        {DNNL_ARG_SRC, from}, {DNNL_ARG_WEIGHTS, packed[i % packed.size()]}, {DNNL_ARG_DST, to}};
    matmul.execute(stream, arguments);
    stream.wait();
  };
  for (size_t i = 0; i < packed.size(); ++i) run(i);
  const double start = seconds();
  size_t runs = 0;
  while (runs < packed.size() || seconds() - start < kMinSeconds) run(runs++);
  const double elapsed = seconds() - start;
  return 2e-9 * static_cast<double>(product.rows * product.out * product.in) * static_cast<double>(runs) /
         elapsed;
}

}  // namespace

int main() {
  std::puts("ready");
  std::fflush(stdout);
  char dtype[16];
  long rows, out, in;
  while (std::scanf("%15s %ld %ld %ld", dtype, &rows, &out, &in) == 4) {
    const bool int8 = std::strcmp(dtype, "int8") == 0;
    if (!int8 && std::strcmp(dtype, "bf16") != 0) {
      std::fprintf(stderr, "onednn_bench: '%s' is neither bf16 nor int8\n", dtype);
      return 1;
    }
    using type = memory::data_type;
    const Product product = int8 ? Product{type::u8, type::s8, type::s32, rows, out, in}
                                 : Product{type::bf16, type::bf16, type::bf16, rows, out, in};
    try {
      std::printf("{\"dtype\": \"%s\", \"rows\": %ld, \"out\": %ld, \"in\": %ld, \"gigaflops\": %.3f}\n",
                  dtype, rows, out, in, gigaflops(product));
    } catch (const dnnl::error& error) {
      std::fprintf(stderr, "onednn_bench: %s %ld %ld %ld: %s\n", dtype, rows, out, in, error.what());
      return 1;
    }
    std::fflush(stdout);
  }
  return 0;
}
