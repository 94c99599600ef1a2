#include "checkpoint/packed_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace tandem {
namespace {

class PackedCacheFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tandem_packed_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    key_ = {(folder_ / "weights.packed").string(), 11, 22};
    // Odd sizes, an empty part, one of several blocks, parts that are copied out between the others.
    const size_t sizes[] = {64, 1, 3 * kPackedCacheBlock + 17, 0, 1000, 4096};
    for (size_t i = 0; i < std::size(sizes); ++i) {
      std::vector<std::byte> bytes(sizes[i]);
      for (size_t at = 0; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(at * 31 + at / 251 + i);
      bytes_.push_back(std::move(bytes));
      parts_.push_back({100 + i, sizes[i], i % 2 == 0, nullptr});
    }
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i].data = bytes_[i].data();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write() {
    const auto written = write_packed_cache(key_, parts_, pool_);
    ASSERT_TRUE(written.has_value()) << written.error().message;
    ASSERT_TRUE(*written);
  }
  Result<PackedCache> open(CacheHold hold = CacheHold::mapped) {
    return PackedCache::open(key_, parts_, hold, pool_);
  }
  void expect_whole() {
    for (const CacheHold hold : {CacheHold::mapped, CacheHold::copied}) {
      const auto cache = open(hold);
      ASSERT_TRUE(cache.has_value()) << cache.error().message;
      for (size_t i = 0; i < parts_.size(); ++i) {
        const auto part = cache->part(i);
        ASSERT_EQ(part.size(), bytes_[i].size());
        EXPECT_TRUE(std::ranges::equal(part, bytes_[i])) << i;
        EXPECT_EQ(reinterpret_cast<uintptr_t>(part.data()) % kPackedCacheAlignment, 0u);
      }
    }
  }
  void expect_refused(const std::string& word) {
    for (const CacheHold hold : {CacheHold::mapped, CacheHold::copied}) {
      const auto cache = open(hold);
      ASSERT_FALSE(cache.has_value()) << word;
      EXPECT_NE(cache.error().message.find(word), std::string::npos) << cache.error().message;
      EXPECT_EQ(cache.error().message.find(key_.path), 0u) << cache.error().message;
    }
  }
  void flip(uint64_t at, int bit = 0) const {
    std::fstream file(key_.path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ (1 << bit)));
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  std::filesystem::path folder_;
  PackedCacheKey key_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<PackedCachePart> parts_;
  ThreadPool pool_{2};
};

TEST_F(PackedCacheFile, GivesBackWhatWasWritten) {
  EXPECT_EQ(open().error().code, ErrorCode::not_found);
  write();
  expect_whole();
  EXPECT_EQ(files(), 1u);
}

TEST_F(PackedCacheFile, CutOffIsRefused) {
  write();
  const PackedCacheLayout layout(parts_);
  ASSERT_EQ(std::filesystem::file_size(key_.path), layout.file_bytes());
  for (const uint64_t size :
       {layout.file_bytes() - 1, layout.file_bytes() - kPackedCacheBlock, layout.body_begin(),
        layout.entries_begin() + 5, layout.entries_begin(), layout.entries_begin() - 1, uint64_t{0}}) {
    std::filesystem::resize_file(key_.path, size);
    expect_refused("is cut short");
  }
  write();
  std::filesystem::resize_file(key_.path, layout.file_bytes() + 1);
  expect_refused("is cut short");
  write();
  expect_whole();
}

TEST_F(PackedCacheFile, AnyFlippedBitIsFound) {
  write();
  const PackedCacheLayout layout(parts_);
  const auto check = [&](uint64_t at, int bit) {
    flip(at, bit);
    EXPECT_FALSE(open().has_value()) << "byte " << at << " bit " << bit;
    flip(at, bit);
  };
  for (uint64_t at = 0; at < layout.checksums_begin() + 24; ++at) check(at, static_cast<int>(at % 8));
  for (uint64_t at = layout.body_begin() - 1; at < layout.file_bytes(); at += 1'999'993) check(at, 7);
  check(layout.file_bytes() - 1, 0);
  expect_whole();

  flip(3);
  expect_refused("is not a file of packed weights");
  flip(3);
  flip(8, 4);
  expect_refused("has format 17");
  flip(8, 4);
  flip(40);
  expect_refused("damaged header");
  flip(40);
  flip(layout.entries_begin() + 8);
  expect_refused("damaged table");
  flip(layout.entries_begin() + 8);
  flip(layout.block_begin(1) + 1234);
  expect_refused("is damaged in the 2097152 bytes from " + std::to_string(layout.block_begin(1)));
}

TEST_F(PackedCacheFile, OfOtherWeightsIsRefused) {
  write();
  ++key_.checkpoint;
  expect_refused("the checkpoint has changed");
  --key_.checkpoint;
  ++key_.contents;
  expect_refused("holds other weights");
  --key_.contents;
  // Even behind an equal key: each part is compared.
  ++parts_[1].id;
  expect_refused("holds other weights");
  --parts_[1].id;
  std::swap(parts_[0].in_place, parts_[1].in_place);
  expect_refused("holds other weights");
}

// A disk without room, as a limit on the size of files.
TEST_F(PackedCacheFile, FullDiskLeavesWhatWasThere) {
  write();
  struct rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{kPackedCacheBlock, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto written = write_packed_cache(key_, parts_, pool_);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::resource_exhausted) << written.error().message;
  EXPECT_NE(written.error().message.find(key_.path), std::string::npos) << written.error().message;
  EXPECT_EQ(files(), 1u);
  expect_whole();
}

TEST_F(PackedCacheFile, FolderThatTakesNoFilesIsNamed) {
  key_.path = "/proc/self/weights.packed";
  const auto written = write_packed_cache(key_, parts_, pool_);
  ASSERT_FALSE(written.has_value());
  EXPECT_NE(written.error().message.find("/proc/self/weights.packed"), std::string::npos);
}

TEST_F(PackedCacheFile, WhatACrashLeftIsBegunAgain) {
  std::ofstream(key_.path + ".writing") << "half a file";
  write();
  expect_whole();
  EXPECT_EQ(files(), 1u);
}

TEST_F(PackedCacheFile, AnotherWriterIsLeftAlone) {
  const std::string name = key_.path + ".writing";
  const int other = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  ASSERT_EQ(::write(other, "mine", 4), 4);
  const auto written = write_packed_cache(key_, parts_, pool_);
  ASSERT_TRUE(written.has_value()) << written.error().message;
  EXPECT_FALSE(*written);
  EXPECT_EQ(std::filesystem::file_size(name), 4u);
  ::close(other);
}

// Ranks that start together and hold the same parts. Nobody ever sees half a file, and one that is in use
// keeps its bytes.
TEST_F(PackedCacheFile, WritersAtOnce) {
  std::atomic<int> wrote{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      ThreadPool pool(1);
      for (int round = 0; round < 5; ++round) {
        const auto written = write_packed_cache(key_, parts_, pool);
        ASSERT_TRUE(written.has_value()) << written.error().message;
        wrote += *written ? 1 : 0;
        const auto cache = PackedCache::open(key_, parts_, CacheHold::mapped, pool);
        if (!cache) {
          EXPECT_EQ(cache.error().code, ErrorCode::not_found) << cache.error().message;
          continue;
        }
        EXPECT_EQ(std::memcmp(cache->part(2).data(), bytes_[2].data(), bytes_[2].size()), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(wrote.load(), 0);
  EXPECT_EQ(files(), 1u);
  expect_whole();
}

}  // namespace
}  // namespace tandem
