#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <vector>

#include "base/arena.h"
#include "base/bf16.h"
#include "base/cpu_budget.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/thread_pool.h"

namespace tandem {
namespace {

TEST(Bf16, RoundsToNearestEvenAndKeepsSpecials) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie: even stays
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);  // tie: odd goes up
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(
      std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7f800001u)))));  // payload only in the low half
  EXPECT_TRUE(std::isinf(to_float(to_bf16(std::numeric_limits<float>::max()))));
}

TEST(Half, EveryValueConvertsExactly) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>((bits >> 10) & 0x1f);
    const double mantissa = bits & 0x3ff;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    const float got = half_to_float(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(got), mantissa != 0);
      continue;
    }
    const double want =
        exponent == 0 ? sign * std::ldexp(mantissa, -24) : sign * std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(static_cast<double>(got), want) << bits;
  }
}

TEST(DType, NamesAndSizesAgree) {
  for (int value = 0; value <= static_cast<int>(DType::f4_e2m1); ++value) {
    const auto dtype = static_cast<DType>(value);
    ASSERT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_bytes(DType::f4_e2m1, 3), 2u);
  EXPECT_EQ(dtype_bytes(DType::bf16, 3), 6u);
  EXPECT_FALSE(dtype_from_name("float33").has_value());
}

TEST(CpuBudget, ReadsCpuMax) {
  EXPECT_EQ(parse_cpu_max("max 100000"), 0);
  EXPECT_EQ(parse_cpu_max("150000 100000"), 1.5);
  EXPECT_EQ(parse_cpu_max(""), 0);
  EXPECT_GE(CpuBudget::detect().threads, 1);
}

TEST(ThreadPool, RunsEveryTaskOnceWhateverTheSize) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (size_t tasks : {0u, 1u, 2u, 3u, 1000u}) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::vector<std::atomic<int>> counts(tasks);
        pool.run(tasks, [&](size_t task, int worker) {
          ASSERT_LT(worker, threads);
          counts[task].fetch_add(1);
        });
        for (const auto& count : counts) ASSERT_EQ(count.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, ManyShortRegionsLoseNoTaskAndSeeTheirOwnArguments) {
  ThreadPool pool(4);
  std::atomic<size_t> sum{0};
  for (size_t region = 0; region < 20000; ++region) {
    // A worker that came late must not run a task with the arguments of another region.
    std::vector<size_t> marks(3, 0);
    pool.run(marks.size(), [&, region](size_t task, int) {
      marks[task] = region + 1;
      sum.fetch_add(1);
    });
    for (size_t mark : marks) ASSERT_EQ(mark, region + 1);
  }
  EXPECT_EQ(sum.load(), 60000u);
}

TEST(File, RefusesWhatIsNotAFileAndWhatIsTooLarge) {
  EXPECT_EQ(read_file("/nonexistent/file", 10).error().code, ErrorCode::not_found);
  EXPECT_EQ(read_file("/tmp", 10).error().code, ErrorCode::invalid_argument);
  const std::string path = testing::TempDir() + "tandem_base_test_file";
  std::ofstream(path) << "12345";
  EXPECT_EQ(read_file(path, 4).error().code, ErrorCode::out_of_range);
  EXPECT_EQ(read_file(path, 5).value(), "12345");
  EXPECT_EQ(MappedFile::open(path)->bytes().size(), 5u);
  std::remove(path.c_str());
}

// Nothing can be done about it, but whoever runs the process learns which file it was.
TEST(FileDeathTest, AMappedFileThatIsCutShortIsNamed) {
  const std::string path = testing::TempDir() + "tandem_base_test_cut_file";
  std::ofstream(path) << std::string(size_t{1} << 16, 'x');
  const auto read_behind_the_end = [&] {
    const MappedFile file = std::move(*MappedFile::open(path));
    ASSERT_EQ(::truncate(path.c_str(), 10), 0);
    volatile std::byte byte = file.bytes()[40000];
    static_cast<void>(byte);
  };
  EXPECT_DEATH(read_behind_the_end(), "tandem_base_test_cut_file was cut short while it was in use");
  std::ofstream(path) << std::string(size_t{1} << 16, 'y');
  {
    const MappedFile closed = std::move(*MappedFile::open(path));
    EXPECT_EQ(closed.bytes()[40000], std::byte{'y'});
  }
  std::remove(path.c_str());
}

TEST(Buffer, IsAlignedZeroedAndRefusesTheImpossible) {
  for (size_t bytes : {size_t{1}, size_t{100}, size_t{3} << 20}) {
    auto buffer = OwnedBuffer::allocate(bytes);
    ASSERT_TRUE(buffer.has_value());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % kBufferAlignment, 0u);
    for (size_t i = 0; i < bytes; i += 97) ASSERT_EQ(buffer->data()[i], std::byte{0});
  }
  EXPECT_EQ(OwnedBuffer::allocate(SIZE_MAX).error().code, ErrorCode::resource_exhausted);
  EXPECT_EQ(OwnedBuffer::allocate(size_t{1} << 60).error().code, ErrorCode::resource_exhausted);
}

TEST(Arena, HandsOutAlignedPiecesAndTakesAllBack) {
  auto arena = Arena::create(256);
  ASSERT_TRUE(arena.has_value());
  std::byte* first = arena->allocate(1);
  std::byte* second = arena->allocate(65);
  EXPECT_EQ(second - first, 64);
  EXPECT_EQ(arena->used(), 192u);
  arena->reset();
  EXPECT_EQ(arena->allocate(256), first);
}

}  // namespace
}  // namespace tandem
