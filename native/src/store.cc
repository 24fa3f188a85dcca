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
    : plan_(plan), files_(files), backend_(backend), stats_(stats), classes_(plan.classes.size()),
      cache_(make_cache(plan)) {
  for (size_t i = 0; i < classes_.size(); ++i) {
    classes_[i].plan = &plan.classes[i];
    classes_[i].fills.resize(plan.classes[i].slots);
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

bool Store::acquire(uint32_t group, const std::vector<uint32_t>& part_order, size_t n_transient, Lease* lease) {
  collect(false);
  // Reads that failed while nobody waited may still hold slots; give them back before refusing.
  while (!cache_->fits(group, lease->experts)) {
    if (backend_->in_flight() == 0 && queued_.empty()) return false;
    collect(true);
  }
  cache_->serve({group, lease->experts.data(), lease->experts.size(), n_transient}, &served_);
  lease->group = group;
  lease->slots = served_.slots;
  lease->loading.clear();
  lease->active = true;
  const uint32_t n_parts = static_cast<uint32_t>(plan_.groups[group].parts.size());
  std::vector<Fill>& fills = class_of(group).fills;
  for (const size_t i : served_.missed) fill(group, lease->slots[i], false);
  for (const uint32_t slot : lease->slots) {
    if (fills[slot].missing != 0) lease->loading.push_back(slot);
    if (!fills[slot].guessed) continue;
    fills[slot].guessed = false;
    add((*stats_)->pilot_useful, 1);
  }
  const auto queue_missed = [&](uint32_t part) {
    for (const size_t i : served_.missed) queue_part(group, lease->experts[i], lease->slots[i], part);
  };
  for (const uint32_t part : part_order) queue_missed(part);
  // Products of one expert may go by different selections: a slot always becomes whole.
  for (uint32_t part = 0; part < n_parts; ++part) {
    if (std::find(part_order.begin(), part_order.end(), part) == part_order.end()) queue_missed(part);
  }
  start_queued();
  publish_counts(*cache_, stats_);
  return true;
}

void Store::queue_part(uint32_t group, int32_t expert, uint32_t slot, uint32_t part) {
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
  read.expert = expert;
  read.in_use = true;
  // Held by the read: never reused while the drive may write into it.
  cache_->pin(cache_->size_class(group), slot);
  pending_bytes_ += plan_.groups[group].parts[part].slice_bytes;
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
  const uint64_t begin = part.offset + static_cast<uint64_t>(read.expert) * part.slice_bytes;
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
  Fill& fill = cls.fills[read.slot];
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
    fill.failed = true;
    error_ = "reading expert " + std::to_string(read.expert) + " of " + part.tensor_name + " from " +
             plan_.files[part.file].path + " failed: " +
             (read.error == ENODATA ? "the file ends early" : std::strerror(read.error));
  } else {
    if (read.staging >= 0) {
      const uint64_t begin = part.offset + static_cast<uint64_t>(read.expert) * part.slice_bytes;
      std::memcpy(cls.base + read.slot * cls.plan->stride_bytes + cls.plan->part_offsets[read.part],
                  staging_ + static_cast<uint64_t>(read.staging) * staging_span_ + begin % kPage, part.slice_bytes);
    }
    fill.missing &= ~(1u << read.part);
  }
  if (read.staging >= 0) free_staging_.push_back(read.staging);
  pending_bytes_ -= part.slice_bytes;
  delivered_bytes_ += part.slice_bytes;
  read.in_use = false;
  free_reads_.push_back(index);
  cache_->unpin(cache_->size_class(read.group), read.slot);
  if (fill.failed) drop(read.group, read.slot);
}

void Store::drop(uint32_t group, uint32_t slot) {
  // Another read or a lease may still hold it.
  if (cache_->abandon(cache_->size_class(group), slot)) class_of(group).fills[slot] = Fill{};
}

bool Store::arrived(const Lease& lease, uint32_t part) const {
  const Class& cls = class_of(lease.group);
  return std::none_of(lease.loading.begin(), lease.loading.end(), [&](uint32_t slot) {
    return (cls.fills[slot].missing >> part & 1u) != 0 || cls.fills[slot].failed;
  });
}

bool Store::wait(Lease* lease, uint32_t part) {
  if (arrived(*lease, part)) return true;
  const auto start = std::chrono::steady_clock::now();
  auto last = start;
  bool in_a_row = false;  // the drive was busy all the time between two deliveries that were both waited for
  const Class& cls = class_of(lease->group);
  bool whole = false;
  while (true) {
    whole = arrived(*lease, part);
    const bool failed = std::any_of(lease->loading.begin(), lease->loading.end(),
                                    [&](uint32_t slot) { return cls.fills[slot].failed; });
    if (whole || failed) break;
    const uint64_t before = delivered_bytes_;
    collect(true);
    const auto now = std::chrono::steady_clock::now();
    if (in_a_row) {
      rate_bytes_ += delivered_bytes_ - before;
      rate_ns_ += static_cast<uint64_t>(std::chrono::nanoseconds(now - last).count());
    }
    in_a_row = true;
    last = now;
  }
  const auto waited = std::chrono::steady_clock::now() - start;
  add((*stats_)->wait_ns, static_cast<uint64_t>(std::chrono::nanoseconds(waited).count()));
  return whole;
}

void Store::release(Lease* lease) {
  if (!lease->active) return;
  const uint32_t size_class = cache_->size_class(lease->group);
  for (const uint32_t slot : lease->slots) {
    cache_->unpin(size_class, slot);
    const bool failed = classes_[size_class].fills[slot].failed;
    if (failed && !cache_->is_pinned(size_class, slot)) drop(lease->group, slot);
  }
  lease->active = false;
}

// The slot is given to an expert that is not there yet.
void Store::fill(uint32_t group, uint32_t slot, bool guessed) {
  Fill& fill = class_of(group).fills[slot];
  if (fill.guessed) {  // whoever it was read for early is gone unused
    add((*stats_)->pilot_wasted, 1);
    add((*stats_)->pilot_wasted_bytes, expert_bytes(group));
  }
  fill = Fill{(1u << plan_.groups[group].parts.size()) - 1, false, guessed};
}

bool Store::prefetch(uint32_t group, const std::vector<uint32_t>& part_order, int32_t expert) {
  const int32_t slot = cache_->place_guess(group, expert, &served_);
  if (slot < 0) return false;
  fill(group, static_cast<uint32_t>(slot), true);
  for (const uint32_t part : part_order) queue_part(group, expert, static_cast<uint32_t>(slot), part);
  for (uint32_t part = 0; part < plan_.groups[group].parts.size(); ++part) {
    if (std::find(part_order.begin(), part_order.end(), part) == part_order.end()) {
      queue_part(group, expert, static_cast<uint32_t>(slot), part);
    }
  }
  return true;
}

uint64_t Store::expert_bytes(uint32_t group) const {
  uint64_t nbytes = 0;
  for (const ExpertPart& part : plan_.groups[group].parts) nbytes += part.slice_bytes;
  return nbytes;
}

bool Store::take_drive_rate(uint64_t* nbytes, uint64_t* elapsed_ns) {
  constexpr uint64_t kEnough = 1u << 20;
  if (rate_bytes_ < kEnough || rate_ns_ == 0) return false;
  *nbytes = rate_bytes_;
  *elapsed_ns = rate_ns_;
  rate_bytes_ = rate_ns_ = 0;
  return true;
}

std::string Store::take_error() {
  std::string error;
  error.swap(error_);
  return error;
}

}  // namespace guanaco
