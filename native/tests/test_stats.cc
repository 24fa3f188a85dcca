// The shared counters: where they lie, and what is done without a file.
#include <fstream>

#include "bed.h"
#include "check.h"
#include "stats.h"

using guanaco::Stats;
using guanaco::StatsBlock;

TEST(stats_layout_is_words_around_the_text) {
  // engine/native.py reads these places.
  CHECK_EQ(offsetof(StatsBlock, magic), 0);
  CHECK_EQ(offsetof(StatsBlock, tokens), 21 * 8);
  CHECK_EQ(offsetof(StatsBlock, error_length), 48 * 8);
  CHECK_EQ(offsetof(StatsBlock, error), 49 * 8);
  CHECK_EQ(offsetof(StatsBlock, replay_on), 49 * 8 + guanaco::kErrorBytes);
  CHECK_EQ(sizeof(StatsBlock), 49 * 8 + guanaco::kErrorBytes + 20 * 8);
  CHECK(guanaco::Word::is_always_lock_free);
}

TEST(stats_are_seen_through_the_file) {
  TempDir dir;
  const std::string path = dir.write("stats", std::string(sizeof(StatsBlock), '\0'));
  Stats writer(path), reader(path);
  guanaco::add(writer->hits, 5);
  reader->replay_on = 1;
  CHECK_EQ(reader->hits.load(), 5);
  CHECK_EQ(writer->replay_on.load(), 1);
  CHECK_EQ(reader->magic.load(), guanaco::kStatsMagic);
  writer.fail_load("no room\tfor it");
  CHECK_EQ(reader->state.load(), static_cast<uint64_t>(guanaco::LoadState::kFailed));
  CHECK_EQ(std::string(reader->error, reader->error_length), std::string("no room\tfor it"));
  writer.set_error(std::string(1100, 'x'));
  CHECK_EQ(reader->error_length.load(), guanaco::kErrorBytes - 1);
  std::ifstream file(path, std::ios::binary);
  std::string head(8, '\0');
  file.read(head.data(), 8);
  CHECK_EQ(head, std::string("GUGNSTA1"));
}

TEST(stats_without_a_usable_file_are_private) {
  TempDir dir;
  for (const std::string& path : {std::string(), dir.path("missing"), dir.write("short", "abc")}) {
    Stats stats(path);
    guanaco::add(stats->misses, 2);
    CHECK_EQ(stats->misses.load(), 2);
  }
}
