#include "pagecache.h"

#include <fcntl.h>
#include <sys/mman.h>

namespace guanaco {

PageCacheStore::PageCacheStore(const LoadPlan& plan, const OpenFiles& files, const Mappings& mappings, Stats* stats)
    : plan_(plan), files_(files), mappings_(mappings), stats_(stats), classes_(plan.classes.size()) {
  for (const ExpertGroup& group : plan.groups) residency_.emplace_back(group.n_expert, -1);
  for (size_t i = 0; i < classes_.size(); ++i) {
    const uint32_t n_slots = plan.classes[i].slots;
    classes_[i].slots.assign(n_slots, {-1, -1});
    classes_[i].pins.assign(n_slots, 0);
    classes_[i].policy = make_lru(n_slots);
    (*stats)->slots += n_slots;
  }
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

bool PageCacheStore::serve(uint32_t group, const std::vector<int32_t>& experts, size_t n_transient) {
  if (!advised_) set_random_access();
  advised_ = true;
  Class& cls = classes_[plan_.groups[group].size_class];
  StatsBlock& stats = **stats_;
  if (experts.size() > cls.slots.size()) return false;
  std::vector<int32_t> held;
  std::vector<size_t> missed;
  for (size_t i = 0; i < experts.size(); ++i) {
    const int32_t slot = residency_[group][static_cast<size_t>(experts[i])];
    if (slot < 0) {
      missed.push_back(i);
    } else {
      if (i >= n_transient) cls.policy->used(static_cast<uint32_t>(slot));
      ++cls.pins[static_cast<size_t>(slot)];
      held.push_back(slot);
    }
  }
  for (const size_t i : missed) {
    const int32_t slot = cls.used < cls.slots.size() ? static_cast<int32_t>(cls.used++)
                                                      : cls.policy->victim(cls.pins.data());
    auto& [old_group, old_expert] = cls.slots[static_cast<size_t>(slot)];
    if (old_group >= 0) {
      advise(static_cast<uint32_t>(old_group), old_expert, false);
      residency_[static_cast<size_t>(old_group)][static_cast<size_t>(old_expert)] = -1;
      add(stats.evictions, 1);
    }
    old_group = static_cast<int32_t>(group);
    old_expert = experts[i];
    residency_[group][static_cast<size_t>(experts[i])] = slot;
    cls.policy->placed(static_cast<uint32_t>(slot), i < n_transient);
    ++cls.pins[static_cast<size_t>(slot)];
    held.push_back(slot);
    for (const ExpertPart& part : plan_.groups[group].parts) add(stats.bytes_read, part.slice_bytes);
  }
  for (const int32_t expert : experts) advise(group, expert, true);
  for (const int32_t slot : held) --cls.pins[static_cast<size_t>(slot)];
  add(stats.accesses, experts.size());
  add(stats.hits, experts.size() - missed.size());
  add(stats.misses, missed.size());
  add(stats.prefetch_calls, 1);
  return true;
}

}  // namespace guanaco
