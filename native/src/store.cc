#include "store.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace guanaco {

namespace {

constexpr uint32_t kMaxTries = 3;

uint64_t round_up(uint64_t x, uint64_t to) { return (x + to - 1) / to * to; }

char* map_anonymous(uint64_t nbytes) {
  const long at = syscall(SYS_mmap, nullptr, nbytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);
  return at == -1 ? nullptr : reinterpret_cast<char*>(at);
}

// Commits the pages now, so that a budget that cannot be had fails before the port opens.
bool prefault(char* base, uint64_t nbytes) {
  madvise(base, nbytes, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  if (madvise(base, nbytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
#endif
  for (uint64_t at = 0; at < nbytes; at += kPage) base[at] = 0;
  return true;
}

uint64_t largest_unaligned_span(const LoadPlan& plan) {
  uint64_t span = 0;
  for (const ExpertGroup& group : plan.groups) {
    for (const ExpertPart& part : group.parts) {
      if (part.slice_bytes % kPage != 0) span = std::max(span, page_ceil(part.slice_bytes) + kPage);
    }
  }
  return span;
}

}  // namespace

Store::Store(const LoadPlan& plan, const OpenFiles& files, ReadBackend* backend, Stats* stats)
    : plan_(plan), files_(files), backend_(backend), stats_(stats), classes_(plan.classes.size()) {
  for (const ExpertGroup& group : plan.groups) residency_.emplace_back(group.n_expert, -1);
  for (size_t i = 0; i < classes_.size(); ++i) {
    Class& cls = classes_[i];
    cls.plan = &plan.classes[i];
    cls.slots.resize(cls.plan->slots);
    cls.pins.assign(cls.plan->slots, 0);
    for (uint32_t slot = cls.plan->slots; slot > 0; --slot) cls.empty.push_back(slot - 1);
    cls.policy = make_lru(cls.plan->slots);
  }
}

Store::~Store() {
  while (backend_->in_flight() > 0) {
    done_.clear();
    backend_->collect(true, &done_);
  }
  if (arena_ != nullptr) munmap(arena_, arena_map_bytes_);
  if (staging_ != nullptr) munmap(staging_, staging_map_bytes_);
}

bool Store::allocate(std::string* error) {
  uint64_t total = 0;
  for (const Class& cls : classes_) total += round_up(cls.plan->slots * cls.plan->stride_bytes, kHugePage);
  arena_map_bytes_ = total + kHugePage;
  arena_ = map_anonymous(arena_map_bytes_);
  staging_span_ = largest_unaligned_span(plan_);
  const uint64_t n_staging = staging_span_ == 0 ? 0 : std::max<uint64_t>(1, plan_.staging_bytes / staging_span_);
  staging_map_bytes_ = n_staging * staging_span_;
  if (n_staging > 0) staging_ = map_anonymous(staging_map_bytes_);
  if (arena_ == nullptr || (n_staging > 0 && staging_ == nullptr)) {
    *error = "cannot map the expert arena of " + std::to_string(total) + " bytes: " + std::strerror(errno);
    return false;
  }
  for (uint64_t i = n_staging; i > 0; --i) free_staging_.push_back(static_cast<int32_t>(i - 1));
  char* at = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(arena_), kHugePage));
  for (Class& cls : classes_) {
    cls.base = at;
    const uint64_t nbytes = round_up(cls.plan->slots * cls.plan->stride_bytes, kHugePage);
    if (!prefault(at, nbytes)) {
      *error = "cannot commit the expert arena of " + std::to_string(total) + " bytes: " + std::strerror(errno);
      return false;
    }
    at += nbytes;
    (*stats_)->slots += cls.plan->slots;
  }
  if (n_staging > 0 && !prefault(staging_, staging_map_bytes_)) {
    *error = std::string("cannot commit the staging buffers: ") + std::strerror(errno);
    return false;
  }
  (*stats_)->arena_bytes = total;
  return true;
}

char* Store::part_base(uint32_t group, uint32_t part) const {
  const ExpertPart& info = plan_.groups[group].parts[part];
  // Aligned slices keep their place in the first block; others are moved to its start.
  const uint64_t head = is_aligned(info) ? info.offset % kPage : 0;
  const Class& cls = class_of(group);
  return cls.base + cls.plan->part_offsets[part] + head;
}

bool Store::enough_room(const Class& cls, uint32_t group, const Lease& lease) const {
  size_t wanted = 0;
  for (const int32_t expert : lease.experts) {
    const int32_t slot = residency_[group][static_cast<size_t>(expert)];
    // A resident one that nobody pins would count as free below: it is taken too.
    if (slot < 0 || cls.pins[static_cast<size_t>(slot)] == 0) ++wanted;
  }
  const size_t free = static_cast<size_t>(std::count(cls.pins.begin(), cls.pins.end(), 0u));
  return wanted <= free;
}

uint32_t Store::take_slot(Class* cls) {
  if (!cls->empty.empty()) {
    const uint32_t slot = cls->empty.back();
    cls->empty.pop_back();
    return slot;
  }
  const uint32_t slot = static_cast<uint32_t>(cls->policy->victim(cls->pins.data()));
  Slot& old = cls->slots[slot];
  residency_[static_cast<size_t>(old.group)][static_cast<size_t>(old.expert)] = -1;
  add((*stats_)->evictions, 1);
  return slot;
}

bool Store::acquire(uint32_t group, const std::vector<uint32_t>& part_order, size_t n_transient, Lease* lease) {
  Class& cls = class_of(group);
  collect(false);
  // Reads that failed while nobody waited may still hold slots; give them back before refusing.
  while (!enough_room(cls, group, *lease)) {
    if (backend_->in_flight() == 0 && queued_.empty()) return false;
    collect(true);
  }
  const size_t n = lease->experts.size();
  lease->group = group;
  lease->slots.assign(n, 0);
  lease->loading.clear();
  lease->active = true;
  // Pin what is resident first, so that no miss takes the slot of a hit.
  std::vector<size_t> missed;
  for (size_t i = 0; i < n; ++i) {
    const int32_t slot = residency_[group][static_cast<size_t>(lease->experts[i])];
    if (slot < 0) {
      missed.push_back(i);
      continue;
    }
    lease->slots[i] = static_cast<uint32_t>(slot);
    ++cls.pins[lease->slots[i]];
    if (cls.slots[lease->slots[i]].missing != 0) lease->loading.push_back(lease->slots[i]);
    if (i >= n_transient) cls.policy->used(lease->slots[i]);
  }
  const uint32_t n_parts = static_cast<uint32_t>(plan_.groups[group].parts.size());
  const uint32_t all_parts = (1u << n_parts) - 1;
  for (const size_t i : missed) {
    const uint32_t slot = take_slot(&cls);
    cls.slots[slot] = Slot{static_cast<int32_t>(group), lease->experts[i], all_parts, false};
    residency_[group][static_cast<size_t>(lease->experts[i])] = static_cast<int32_t>(slot);
    lease->slots[i] = slot;
    lease->loading.push_back(slot);
    ++cls.pins[slot];
    cls.policy->placed(slot, i < n_transient);
  }
  for (const uint32_t part : part_order) {
    for (const size_t i : missed) queue_part(group, lease->slots[i], part);
  }
  // Products of one expert may go by different selections: a slot always becomes whole.
  for (uint32_t part = 0; part < n_parts; ++part) {
    if (std::find(part_order.begin(), part_order.end(), part) != part_order.end()) continue;
    for (const size_t i : missed) queue_part(group, lease->slots[i], part);
  }
  start_queued();
  StatsBlock& stats = **stats_;
  add(stats.accesses, n);
  add(stats.hits, n - missed.size());
  add(stats.misses, missed.size());
  add(stats.prefetch_calls, 1);
  return true;
}

void Store::queue_part(uint32_t group, uint32_t slot, uint32_t part) {
  uint32_t index = 0;
  if (free_reads_.empty()) {
    index = static_cast<uint32_t>(reads_.size());
    reads_.emplace_back();
  } else {
    index = free_reads_.back();
    free_reads_.pop_back();
  }
  PartRead& read = reads_[index];
  read = PartRead{};
  read.group = group;
  read.slot = slot;
  read.part = part;
  read.in_use = true;
  ++class_of(group).pins[slot];  // held by the read: never reused while the drive may write into it
  queued_.push_back(index);
}

void Store::start_queued() {
  batch_.clear();
  while (!queued_.empty()) {
    PartRead& read = reads_[queued_.front()];
    if (!is_aligned(plan_.groups[read.group].parts[read.part]) && read.staging < 0) {
      if (free_staging_.empty()) break;
      read.staging = free_staging_.back();
      free_staging_.pop_back();
    }
    start_part(queued_.front());
    queued_.pop_front();
  }
  if (!batch_.empty()) backend_->submit(batch_);
}

void Store::start_part(uint32_t index) {
  PartRead& read = reads_[index];
  const Class& cls = class_of(read.group);
  const ExpertPart& part = plan_.groups[read.group].parts[read.part];
  const int32_t expert = cls.slots[read.slot].expert;
  const uint64_t begin = part.offset + static_cast<uint64_t>(expert) * part.slice_bytes;
  const uint64_t first = page_floor(begin);
  const uint64_t end = page_ceil(begin + part.slice_bytes);
  char* destination = read.staging >= 0
                          ? staging_ + static_cast<uint64_t>(read.staging) * staging_span_
                          : cls.base + read.slot * cls.plan->stride_bytes + cls.plan->part_offsets[read.part];
  read.chunks_left = 0;
  for (uint64_t at = first; at < end; at += plan_.read_chunk_bytes) {
    Read chunk;
    chunk.fd = files_.fds[part.file];
    chunk.offset = at;
    chunk.nbytes = std::min(plan_.read_chunk_bytes, end - at);
    chunk.required = std::min(chunk.nbytes, begin + part.slice_bytes - at);
    chunk.destination = destination + (at - first);
    chunk.tag = index;
    batch_.push_back(chunk);
    ++read.chunks_left;
    add((*stats_)->bytes_read, std::min(chunk.nbytes, plan_.files[part.file].size_bytes - at));
  }
}

void Store::collect(bool block) {
  done_.clear();
  backend_->collect(block, &done_);
  for (const Completion& completion : done_) {
    PartRead& read = reads_[completion.tag];
    int error = completion.error;
    if (plan_.testing && (*stats_)->fail_reads > 0) {
      --(*stats_)->fail_reads;
      error = EIO;
    }
    if (error != 0) read.error = error;
    if (--read.chunks_left == 0) finish_part(static_cast<uint32_t>(completion.tag));
  }
  start_queued();
}

void Store::finish_part(uint32_t index) {
  PartRead& read = reads_[index];
  Class& cls = class_of(read.group);
  Slot& slot = cls.slots[read.slot];
  const ExpertPart& part = plan_.groups[read.group].parts[read.part];
  if (plan_.testing && (*stats_)->fail_slices > 0) {
    --(*stats_)->fail_slices;
    read.error = EIO;
    read.tries = kMaxTries;
  }
  if (read.error != 0 && ++read.tries < kMaxTries) {
    add((*stats_)->read_retries, 1);
    read.error = 0;
    queued_.push_front(index);
    return;
  }
  if (read.error != 0) {
    add((*stats_)->read_errors, 1);
    slot.failed = true;
    error_ = "reading expert " + std::to_string(slot.expert) + " of " + part.tensor_name + " from " +
             plan_.files[part.file].path + " failed: " +
             (read.error == ENODATA ? "the file ends early" : std::strerror(read.error));
  } else {
    if (read.staging >= 0) {
      const uint64_t begin = part.offset + static_cast<uint64_t>(slot.expert) * part.slice_bytes;
      std::memcpy(cls.base + read.slot * cls.plan->stride_bytes + cls.plan->part_offsets[read.part],
                  staging_ + static_cast<uint64_t>(read.staging) * staging_span_ + begin % kPage, part.slice_bytes);
    }
    slot.missing &= ~(1u << read.part);
  }
  if (read.staging >= 0) free_staging_.push_back(read.staging);
  read.in_use = false;
  free_reads_.push_back(index);
  --cls.pins[read.slot];
  if (slot.failed) drop(&cls, read.slot);
}

void Store::drop(Class* cls, uint32_t index) {
  Slot& slot = cls->slots[index];
  if (slot.group >= 0) {
    int32_t& resident = residency_[static_cast<size_t>(slot.group)][static_cast<size_t>(slot.expert)];
    if (resident == static_cast<int32_t>(index)) resident = -1;
  }
  if (cls->pins[index] != 0) return;  // another read or a lease still holds it
  slot = Slot{};
  cls->empty.push_back(index);
}

bool Store::arrived(const Lease& lease, uint32_t part) const {
  const Class& cls = class_of(lease.group);
  return std::none_of(lease.loading.begin(), lease.loading.end(), [&](uint32_t slot) {
    return (cls.slots[slot].missing >> part & 1u) != 0 || cls.slots[slot].failed;
  });
}

bool Store::wait(Lease* lease, uint32_t part) {
  if (arrived(*lease, part)) return true;
  const auto start = std::chrono::steady_clock::now();
  const Class& cls = class_of(lease->group);
  bool whole = false;
  while (true) {
    whole = arrived(*lease, part);
    const bool failed = std::any_of(lease->loading.begin(), lease->loading.end(),
                                    [&](uint32_t slot) { return cls.slots[slot].failed; });
    if (whole || failed) break;
    collect(true);
  }
  const auto waited = std::chrono::steady_clock::now() - start;
  add((*stats_)->wait_ns, static_cast<uint64_t>(std::chrono::nanoseconds(waited).count()));
  return whole;
}

void Store::release(Lease* lease) {
  if (!lease->active) return;
  Class& cls = class_of(lease->group);
  for (const uint32_t slot : lease->slots) {
    --cls.pins[slot];
    if (cls.slots[slot].failed && cls.pins[slot] == 0) drop(&cls, slot);
  }
  lease->active = false;
}

std::string Store::take_error() {
  std::string error;
  error.swap(error_);
  return error;
}

}  // namespace guanaco
