// The page-cache mode: counts, budget, and that an evicted expert really leaves the cache.
#include <fcntl.h>
#include <sys/mman.h>

#include "bed.h"
#include "check.h"
#include "pagecache.h"

using guanaco::kPage;
using guanaco::Mappings;
using guanaco::PageCacheStore;

namespace {

constexpr uint64_t kSlice = 4 * kPage + 32;

struct PageCacheRig {
  explicit PageCacheRig(uint32_t slots) {
    bed.file(100 * kPage, true);
    bed.plan.io = guanaco::IoMode::kPageCache;
    bed.size_class(slots, {kSlice});
    bed.group(0, 0, 16, {{kPage + 32, kSlice}});
    std::string error;
    REQUIRE(bed.open_real(&error));
    starts_cold = drop_cached(bed.files.fds[0], 100 * kPage);
    void* at = guanaco::raw_mmap(nullptr, 100 * kPage, PROT_READ, MAP_SHARED, bed.files.fds[0], 0);
    REQUIRE(at != MAP_FAILED);
    base = static_cast<char*>(at);
    mappings.note(0, base, 100 * kPage);
  }
  ~PageCacheRig() { guanaco::raw_munmap(base, 100 * kPage); }
  bool cached(uint64_t offset) const { return cached_pages(bed.files.fds[0], guanaco::page_floor(offset), kPage) == 1; }

  Bed bed;
  guanaco::Stats stats{""};
  Mappings mappings{bed.plan, &stats};
  char* base = nullptr;
  bool starts_cold = false;
};

}  // namespace

TEST(pagecache_counts) {
  PageCacheRig rig(3);
  PageCacheStore store(rig.bed.plan, rig.bed.files, rig.mappings, &rig.stats);
  CHECK_EQ(rig.stats->slots.load(), 3);
  CHECK_EQ(rig.stats->arena_bytes.load(), rig.bed.plan.arena_bytes());
  CHECK(store.serve(0, {1, 2}, 0));
  CHECK(store.serve(0, {2, 3}, 0));
  CHECK_EQ(rig.stats->evictions.load(), 0);
  CHECK(store.serve(0, {4, 2}, 0));  // in the place of 1
  CHECK(store.serve(0, {1}, 0));     // in the place of 3
  CHECK_EQ(rig.stats->accesses.load(), 7);
  CHECK_EQ(rig.stats->hits.load(), 2);
  CHECK_EQ(rig.stats->misses.load(), 5);
  CHECK_EQ(rig.stats->evictions.load(), 2);
  CHECK_EQ(rig.stats->prefetch_calls.load(), 4);
  CHECK_EQ(rig.stats->bytes_read.load(), 5 * kSlice);
}

TEST(pagecache_more_than_the_budget) {
  PageCacheRig rig(3);
  PageCacheStore store(rig.bed.plan, rig.bed.files, rig.mappings, &rig.stats);
  CHECK(!store.serve(0, {1, 2, 3, 4}, 0));
  CHECK_EQ(rig.stats->accesses.load(), 0);
  CHECK(store.serve(0, {1, 2, 3}, 0));
  CHECK(store.serve(0, {4, 5, 6}, 0));
  CHECK_EQ(rig.stats->evictions.load(), 3);
  CHECK(store.serve(0, {}, 0));
}

TEST(pagecache_prompt_goes_first) {
  PageCacheRig rig(4);
  PageCacheStore store(rig.bed.plan, rig.bed.files, rig.mappings, &rig.stats);
  CHECK(store.serve(0, {1, 2}, 0));
  CHECK(store.serve(0, {3, 4}, 2));
  CHECK(store.serve(0, {5, 6}, 2));
  CHECK(store.serve(0, {1, 2}, 0));
  CHECK_EQ(rig.stats->hits.load(), 2);
}

TEST(pagecache_evicted_experts_leave_the_cache) {
  PageCacheRig rig(1);
  if (!rig.starts_cold) SKIP("this file system does not let its pages go");
  PageCacheStore store(rig.bed.plan, rig.bed.files, rig.mappings, &rig.stats);
  const auto middle = [](uint64_t expert) { return kPage + 32 + expert * kSlice + 2 * kPage; };
  const volatile char* mapped = rig.base;
  int n_cached = 0;
  for (int32_t expert = 0; expert < 16; ++expert) {
    CHECK(store.serve(0, {expert}, 0));
    const uint64_t at = middle(static_cast<uint64_t>(expert));
    CHECK_EQ(static_cast<uint8_t>(mapped[at]), pattern_byte(0, at));
    n_cached += rig.cached(at) ? 1 : 0;
  }
  CHECK_EQ(n_cached, 16);
  int n_left = 0;
  for (uint64_t expert = 0; expert < 15; ++expert) n_left += rig.cached(middle(expert)) ? 1 : 0;
  // The kernel passes over a page that somebody holds in that moment; it may not pass over many.
  CHECK(n_left <= 2);
}
