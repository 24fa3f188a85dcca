#include "pagecache.h"

#include <fcntl.h>
#include <sys/mman.h>

namespace guanaco {

PageCacheStore::PageCacheStore(const LoadPlan& plan, const OpenFiles& files, const Mappings& mappings, Stats* stats)
    : plan_(plan), files_(files), mappings_(mappings), stats_(stats), cache_(make_cache(plan)) {
  for (const SizeClass& size_class : plan.classes) (*stats)->slots += size_class.slots;
  (*stats)->arena_bytes = plan.arena_bytes();
}

void PageCacheStore::set_random_access() const {
  // Faults must not read ahead into experts nobody asked for.
  for (const ExpertGroup& group : plan_.groups) {
    for (const ExpertPart& part : group.parts) {
      char* at = mappings_.address_of(part.file, page_floor(part.offset));
      if (at == nullptr) continue;
      const uint64_t end = page_ceil(part.offset + part.slice_bytes * group.n_expert);
      madvise(at, end - page_floor(part.offset), MADV_RANDOM);
    }
  }
}

void PageCacheStore::advise(uint32_t group, int32_t expert, bool keep) const {
  for (const ExpertPart& part : plan_.groups[group].parts) {
    const uint64_t begin = part.offset + static_cast<uint64_t>(expert) * part.slice_bytes;
    const uint64_t end = begin + part.slice_bytes;
    if (keep) {
      char* at = mappings_.address_of(part.file, page_floor(begin));
      if (at != nullptr) madvise(at, page_ceil(end) - page_floor(begin), MADV_WILLNEED);
      continue;
    }
    // Only whole pages: the rims belong to neighbours. The mapping lets go first, else the cache keeps the page.
    const uint64_t first = page_ceil(begin), last = page_floor(end);
    if (first >= last) continue;
    char* at = mappings_.address_of(part.file, first);
    if (at != nullptr) madvise(at, last - first, MADV_DONTNEED);
    posix_fadvise(files_.fds[part.file], static_cast<off_t>(first), static_cast<off_t>(last - first),
                  POSIX_FADV_DONTNEED);
  }
}

bool PageCacheStore::serve(uint32_t group, const std::vector<int32_t>& experts, size_t n_transient,
                           const BatchRows& rows) {
  if (!advised_) set_random_access();
  advised_ = true;
  if (!cache_->fits(group, experts)) return false;
  cache_->serve({group, experts.data(), experts.size(), n_transient, rows}, &served_);
  for (const ExpertId& old : served_.evicted) advise(static_cast<uint32_t>(old.group), old.expert, false);
  for (const int32_t expert : experts) advise(group, expert, true);
  // The kernel holds the pages: nothing of ours is in use after this.
  for (const uint32_t slot : served_.slots) cache_->unpin(cache_->size_class(group), slot);
  for (const ExpertPart& part : plan_.groups[group].parts) {
    add((*stats_)->bytes_read, part.slice_bytes * served_.missed.size());
  }
  publish_counts(*cache_, stats_);
  return true;
}

}  // namespace guanaco
