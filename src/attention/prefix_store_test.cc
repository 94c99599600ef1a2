// What a prefix cache holds, in a file and out of it again: the same bytes for the same texts, and nothing at
// all of a file that is damaged, in whatever byte, or of other settings.
#include "attention/prefix_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "attention/prefix_saver.h"

namespace tandem {
namespace {

StateGroupSpec group_of(std::string name, uint32_t tokens_per_block, uint32_t retain,
                        std::vector<uint32_t> layers) {
  StateGroupSpec made;
  made.name = std::move(name);
  made.layers = std::move(layers);
  made.tokens_per_block = tokens_per_block;
  made.bytes_per_block = size_t{tokens_per_block} * 4;
  made.retain_tokens = retain;
  return made;
}

// Units of 32 tokens.
const std::vector<StateGroupSpec> kGroups = {
    group_of("kept", 16, 0, {0, 1, 3}), group_of("window", 16, 40, {2}), group_of("entries", 32, 0, {0})};

struct Server {
  explicit Server(std::vector<uint32_t> num_blocks = {40, 30, 20})
      : pools(*StatePools::create(kGroups, num_blocks)), cache(PrefixCache::create(pools)) {}

  static std::vector<int32_t> text(int32_t seed, uint32_t length) {
    std::vector<int32_t> made;
    for (uint32_t i = 0; i < length; ++i) made.push_back(seed * 1000 + static_cast<int32_t>(i));
    return made;
  }
  // The state of a position, in each layer: its token, a layer's number mixed in.
  static int32_t value(int32_t token, uint32_t group, size_t layer) {
    return token * 64 + static_cast<int32_t>(group * 8 + layer);
  }
  std::byte* at(const SequenceState& state, uint32_t group, size_t layer, uint32_t position) {
    const uint32_t tokens = kGroups[group].tokens_per_block;
    return &pools.pool(group).bytes_of(state.block_table(group)[position / tokens],
                                       layer)[size_t{position % tokens} * 4];
  }
  void compute(const std::vector<int32_t>& tokens, const std::string& salt = "") {
    SequenceState state(pools, 1000);
    PrefixUse use;
    use.salt = salt;
    const uint32_t found = cache->attach(state, tokens, 0, use);
    const auto end = static_cast<uint32_t>(tokens.size());
    ASSERT_TRUE(state.reserve(end));
    for (uint32_t group = 0; group < kGroups.size(); ++group) {
      for (size_t layer = 0; layer < kGroups[group].layers.size(); ++layer) {
        for (uint32_t position = found; position < end; ++position) {
          const int32_t stored = value(tokens[position], group, layer);
          std::memcpy(at(state, group, layer, position), &stored, 4);
        }
      }
    }
    state.advance(end - found);
    std::vector<int32_t> said = tokens;
    said.push_back(1);
    cache->store(state, said, use);
  }
  // Tokens that are found, their state compared.
  uint32_t find(const std::vector<int32_t>& tokens, const std::string& salt = "") {
    SequenceState state(pools, 1000);
    PrefixUse use;
    use.salt = salt;
    const uint32_t found = cache->attach(state, tokens, 0, use);
    for (uint32_t group = 0; group < kGroups.size(); ++group) {
      const uint32_t retain = kGroups[group].retain_tokens;
      for (size_t layer = 0; layer < kGroups[group].layers.size(); ++layer) {
        for (uint32_t position = retain == 0 || found < retain ? 0 : found - retain; position < found;
             ++position) {
          int32_t stored = 0;
          std::memcpy(&stored, at(state, group, layer, position), 4);
          EXPECT_EQ(stored, value(tokens[position], group, layer)) << kGroups[group].name << " " << position;
        }
      }
    }
    return found;
  }

  StatePools pools;
  std::unique_ptr<PrefixCache> cache;
};

class PrefixStore : public testing::Test {
 protected:
  PrefixStore() {
    std::string name = (std::filesystem::temp_directory_path() / "prefix-store-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    options_.path = folder_ + "/below/model.prefixes";
    options_.identity = "model 7\ndtype bf16\n";
  }
  ~PrefixStore() override { std::filesystem::remove_all(folder_); }

  std::string contents() const {
    std::ifstream file(options_.path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& bytes) const {
    std::ofstream(options_.path, std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string folder_;
  PrefixStoreOptions options_;
};

TEST_F(PrefixStore, WhatIsReadIsWhatWasWritten) {
  Server before;
  before.compute(Server::text(1, 150));
  auto branch = Server::text(1, 100);
  std::ranges::copy(Server::text(2, 30), branch.begin() + 70);
  before.compute(branch);
  before.compute(Server::text(3, 70), "salt");
  const auto saved = save_prefixes(options_, *before.cache);
  ASSERT_TRUE(saved) << saved.error().message;
  EXPECT_EQ(saved->units, before.cache->num_units());
  EXPECT_EQ(saved->bytes, contents().size());
  struct stat status {};
  ASSERT_EQ(::stat(options_.path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u) << "others can find out what was asked";
  EXPECT_FALSE(std::filesystem::exists(options_.path + ".writing"));

  Server after;
  const auto loaded = load_prefixes(options_, *after.cache);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->units, saved->units);
  for (Server* server : {&before, &after}) {
    EXPECT_EQ(server->find(Server::text(1, 150)), 128u);
    EXPECT_EQ(server->find(branch), 96u);
    EXPECT_EQ(server->find(Server::text(3, 70), "salt"), 64u);
    EXPECT_EQ(server->find(Server::text(3, 70)), 0u);
  }
  for (uint32_t group = 0; group < kGroups.size(); ++group)
    EXPECT_EQ(after.pools.pool(group).free_blocks(), after.pools.pool(group).num_blocks());
}

TEST_F(PrefixStore, WhatWasUsedLastIsKeptWithinTheBound) {
  Server before;
  for (const int32_t seed : {1, 2, 3}) before.compute(Server::text(seed, 70));
  EXPECT_EQ(before.find(Server::text(1, 70)), 64u);
  const uint64_t whole = save_prefixes(options_, *before.cache).value().bytes;
  options_.max_bytes = whole * 3 / 4;
  const auto saved = save_prefixes(options_, *before.cache);
  ASSERT_TRUE(saved);
  EXPECT_LE(saved->bytes, options_.max_bytes);
  Server after;
  ASSERT_TRUE(load_prefixes(options_, *after.cache));
  EXPECT_EQ(after.find(Server::text(1, 70)), 64u);
  EXPECT_EQ(after.find(Server::text(3, 70)), 64u);
  EXPECT_LT(after.find(Server::text(2, 70)), 64u);
  // A pool with fewer blocks takes what it has room for.
  Server small({5, 20, 20});
  ASSERT_TRUE(load_prefixes(options_, *small.cache));
  EXPECT_EQ(small.cache->num_units(), 2u);
  EXPECT_EQ(small.find(Server::text(1, 70)), 64u);
}

Result<PrefixStoreReport> wait_for(PrefixSaver& saver) {
  while (true) {
    if (auto result = saver.take_result()) return *result;
    std::this_thread::yield();
  }
}

// Unit by unit, while the cache goes on: what has been taken for other texts meanwhile is not in the file,
// and what is there is true.
TEST_F(PrefixStore, AFileIsWrittenWhileTheCacheIsUsed) {
  uint32_t left_out = 0, found_again = 0;
  for (int32_t changed_after = 0; changed_after < 12; ++changed_after) {
    Server before({20, 20, 10});  // ten units
    for (const int32_t seed : {1, 2, 3}) before.compute(Server::text(seed, 100));
    PrefixSaver saver(options_);
    EXPECT_FALSE(saver.busy());
    saver.begin(*before.cache);
    bool more = true;
    for (int32_t copies = 0; more; ++copies) {
      if (copies == changed_after) {
        before.compute(Server::text(4, 100));
        before.compute(Server::text(5, 70));
      }
      more = saver.copy(*before.cache, 1);
    }
    EXPECT_TRUE(saver.busy());
    const auto saved = wait_for(saver);
    ASSERT_TRUE(saved) << saved.error().message;
    EXPECT_FALSE(saver.busy());
    EXPECT_FALSE(saver.copy(*before.cache, 1));
    Server after;
    const auto loaded = load_prefixes(options_, *after.cache);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(loaded->units, saved->units);
    left_out += 9 - saved->units;
    for (const int32_t seed : {1, 2, 3}) found_again += after.find(Server::text(seed, 100)) / 32;
    EXPECT_EQ(after.find(Server::text(4, 100)), 0u) << "it was not there when the file began";
  }
  EXPECT_GT(left_out, 0u);
  EXPECT_GT(found_again, 12u);
}

TEST_F(PrefixStore, WhatIsInUseIsWrittenFirst) {
  Server before;
  for (const int32_t seed : {1, 2, 3}) before.compute(Server::text(seed, 70));
  SequenceState state(before.pools, 1000);
  PrefixUse use;
  ASSERT_EQ(before.cache->attach(state, Server::text(1, 70), 0, use), 64u);
  before.find(Server::text(3, 70));
  const std::vector<uint32_t> units = before.cache->units_by_use();
  EXPECT_EQ(units.size(), before.cache->num_units());
  EXPECT_EQ(before.cache->view(units[0]).tokens[0], 1000);
  EXPECT_EQ(before.cache->view(units[1]).parent, units[0]);
  EXPECT_EQ(before.cache->view(units[2]).tokens[0], 3000);
}

TEST_F(PrefixStore, AFileThatIsDroppedLeavesTheOneBefore) {
  Server before;
  before.compute(Server::text(1, 70));
  ASSERT_TRUE(save_prefixes(options_, *before.cache));
  const std::string good = contents();
  before.compute(Server::text(2, 70));
  {
    PrefixSaver saver(options_);
    saver.begin(*before.cache);
    saver.copy(*before.cache, 1);
    saver.cancel();
    EXPECT_FALSE(saver.busy());
    saver.begin(*before.cache);
    saver.copy(*before.cache, 1);
  }
  EXPECT_EQ(contents(), good);
  EXPECT_FALSE(std::filesystem::exists(options_.path + ".writing"));
  std::filesystem::remove_all(folder_);
  std::ofstream(folder_) << "a file where the folder was";
  PrefixSaver saver(options_);
  EXPECT_NE(saver.save(*before.cache).error().message.find("cannot write"), std::string::npos);
  saver.begin(*before.cache);
  while (saver.copy(*before.cache, 1 << 20)) continue;
  EXPECT_FALSE(wait_for(saver));
}

TEST_F(PrefixStore, OtherSettingsAreNamedAndLeaveTheCacheEmpty) {
  Server before;
  before.compute(Server::text(1, 70));
  ASSERT_TRUE(save_prefixes(options_, *before.cache));
  options_.identity = "model 7\ndtype f32\n";
  Server after;
  const auto refused = load_prefixes(options_, *after.cache);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            options_.path + ": made with other settings: 'dtype bf16' there, 'dtype f32' here");
  EXPECT_EQ(after.cache->num_units(), 0u);
  options_.path += ".none";
  EXPECT_EQ(load_prefixes(options_, *after.cache).error().code, ErrorCode::not_found);
}

TEST_F(PrefixStore, ADamagedFileIsNamedAndNothingOfItIsUsed) {
  Server before;
  before.compute(Server::text(1, 70));
  ASSERT_TRUE(save_prefixes(options_, *before.cache));
  const std::string good = contents();
  for (size_t byte = 0; byte < good.size(); ++byte) {
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ 0x10);
    write(bad);
    Server after;
    const auto refused = load_prefixes(options_, *after.cache);
    ASSERT_FALSE(refused) << "byte " << byte;
    ASSERT_TRUE(refused.error().message.starts_with(options_.path)) << refused.error().message;
    ASSERT_EQ(after.cache->num_units(), 0u);
  }
  for (size_t size = 0; size < good.size(); size += 7) {
    write(good.substr(0, size));
    Server after;
    ASSERT_EQ(load_prefixes(options_, *after.cache).error().code, ErrorCode::data_loss) << size;
  }
  write(good + "x");
  Server after;
  EXPECT_FALSE(load_prefixes(options_, *after.cache));
  EXPECT_EQ(after.find(Server::text(1, 70)), 0u);
}

}  // namespace
}  // namespace tandem
