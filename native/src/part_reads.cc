#include "part_reads.h"

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
constexpr uint64_t kEnoughBytes = 1u << 20;  // for a rate
constexpr uint64_t kReallyWaitedNs = 10000;  // less: it was there already, nobody knows since when

uint64_t largest_unaligned_span(const LoadPlan& plan) {
  uint64_t span = 0;
  for (const ExpertGroup& group : plan.groups) {
    for (const ExpertPart& part : group.parts) {
      if (!part.is_aligned()) span = std::max(span, page_ceil(part.slice_bytes) + kPage);
    }
  }
  return span;
}

}  // namespace

uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
}

char* map_anonymous(uint64_t nbytes) {
  const long at = syscall(SYS_mmap, nullptr, nbytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);
  return at == -1 ? nullptr : reinterpret_cast<char*>(at);
}

bool prefault(char* base, uint64_t nbytes) {
  madvise(base, nbytes, MADV_HUGEPAGE);
  madvise(base, nbytes, MADV_DONTFORK);  // a child would keep a second copy of what is read from then on
#ifdef MADV_POPULATE_WRITE
  if (madvise(base, nbytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
#endif
  for (uint64_t at = 0; at < nbytes; at += kPage) base[at] = 0;
  return true;
}

PartReads::PartReads(const LoadPlan& plan, const OpenFiles& files, ReadBackend* backend, Stats* stats)
    : plan_(plan), files_(files), backend_(backend), stats_(stats) {}

PartReads::~PartReads() {
  drain();
  if (staging_ != nullptr) munmap(staging_, staging_map_bytes_);
}

void PartReads::drain() {
  while (backend_->in_flight() > 0) {
    completions_.clear();
    backend_->collect(true, &completions_);
  }
}

bool PartReads::allocate(std::string* error) {
  staging_span_ = largest_unaligned_span(plan_);
  if (staging_span_ == 0) return true;
  // One for guesses, and one that they never hold.
  n_staging_ = std::max<uint64_t>(2, plan_.staging_bytes / staging_span_);
  staging_map_bytes_ = n_staging_ * staging_span_;
  staging_ = map_anonymous(staging_map_bytes_);
  if (staging_ == nullptr || !prefault(staging_, staging_map_bytes_)) {
    *error = std::string("cannot commit the staging buffers: ") + std::strerror(errno);
    return false;
  }
  for (size_t i = n_staging_; i > 0; --i) free_staging_.push_back(static_cast<int32_t>(i - 1));
  return true;
}

void PartReads::queue(const PartRead& read, bool is_guess) {
  uint32_t index = 0;
  if (free_entries_.empty()) {
    index = static_cast<uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    index = free_entries_.back();
    free_entries_.pop_back();
  }
  Entry& entry = entries_[index];
  entry = Entry{};
  entry.read = read;
  entry.in_use = true;
  entry.is_guess = is_guess;
  const ExpertPart& part = part_of(entry);
  const uint64_t begin = part.offset + static_cast<uint64_t>(read.expert) * part.slice_bytes;
  entry.slice_end = begin + part.slice_bytes;
  entry.first = entry.next = page_floor(begin);
  entry.end = page_ceil(entry.slice_end);
  pending_bytes_ += part.slice_bytes;
  if (!is_guess) ++n_demand_;
  (is_guess ? guesses_ : demand_).push_back(index);
}

uint64_t PartReads::chunk_bytes(const Entry& entry) const {
  return std::min(plan_.read_chunk_bytes, entry.end - entry.first);
}

bool PartReads::holds(const Entry& entry, uint32_t group, uint32_t slot) const {
  return entry.in_use && entry.is_guess && entry.read.group == group && entry.read.slot == slot;
}

void PartReads::forget_guess(uint32_t index) {
  const auto at = std::find(guesses_.begin(), guesses_.end(), index);
  if (at != guesses_.end()) guesses_.erase(at);
}

bool PartReads::promote(uint32_t group, uint32_t slot, uint32_t part) {
  for (uint32_t index = 0; index < entries_.size(); ++index) {
    Entry& entry = entries_[index];
    if (!holds(entry, group, slot) || entry.read.part != part || entry.is_cancelled) continue;
    guess_bytes_ -= entry.in_flight * chunk_bytes(entry);
    entry.is_guess = false;
    ++n_demand_;
    forget_guess(index);
    if (entry.next < entry.end) demand_.push_back(index);
    return true;
  }
  return false;
}

uint64_t PartReads::cancel(uint32_t group, uint32_t slot, std::vector<PartDone>* done) {
  uint64_t nbytes = 0;
  for (uint32_t index = 0; index < entries_.size(); ++index) {
    Entry& entry = entries_[index];
    if (!holds(entry, group, slot)) continue;
    nbytes += entry.next - entry.first;
    entry.is_cancelled = true;
    forget_guess(index);
    if (entry.in_flight == 0) end(index, done);
  }
  return nbytes;
}

bool PartReads::take_staging(Entry* entry, size_t n_left) {
  if (entry->staging >= 0 || part_of(*entry).is_aligned()) return true;
  if (free_staging_.size() <= n_left) return false;
  entry->staging = free_staging_.back();
  free_staging_.pop_back();
  return true;
}

void PartReads::add_chunk(uint32_t index) {
  Entry& entry = entries_[index];
  const ExpertPart& part = part_of(entry);
  char* const destination = entry.staging >= 0 ? staging_ + static_cast<uint64_t>(entry.staging) * staging_span_
                                               : entry.read.destination;
  Read chunk;
  chunk.fd = files_.fds[part.file];
  chunk.offset = entry.next;
  chunk.nbytes = std::min(plan_.read_chunk_bytes, entry.end - entry.next);
  chunk.required = std::min(chunk.nbytes, entry.slice_end - entry.next);
  chunk.destination = destination + (entry.next - entry.first);
  chunk.tag = index;
  batch_.push_back(chunk);
  entry.next += chunk.nbytes;
  ++entry.in_flight;
  if (entry.is_guess) guess_bytes_ += chunk_bytes(entry);
  add((*stats_)->bytes_read, std::min(chunk.nbytes, plan_.files[part.file].size_bytes - chunk.offset));
}

void PartReads::start() {
  batch_.clear();
  while (!demand_.empty()) {
    const uint32_t index = demand_.front();
    if (!take_staging(&entries_[index], 0)) break;
    while (entries_[index].next < entries_[index].end) add_chunk(index);
    demand_.pop_front();
  }
  while (n_demand_ == 0 && !guesses_.empty() && guess_bytes_ < most_guess_bytes_) {
    const uint32_t index = guesses_.front();
    if (!take_staging(&entries_[index], n_staging_ / 2)) break;
    add_chunk(index);
    if (entries_[index].next == entries_[index].end) guesses_.pop_front();
  }
  if (batch_.empty()) return;
  if (backend_->in_flight() == 0) {
    busy_since_ns_ = now_ns();
    busy_from_bytes_ = delivered_bytes_;
  }
  backend_->submit(batch_);
}

void PartReads::collect(bool block, std::vector<PartDone>* done) {
  const uint64_t start_ns = block ? now_ns() : 0;
  completions_.clear();
  backend_->collect(block, &completions_);
  for (const Completion& completion : completions_) {
    const uint32_t index = static_cast<uint32_t>(completion.tag);
    Entry& entry = entries_[index];
    int error = completion.error;
    if (plan_.testing && !entry.is_guess && (*stats_)->fail_reads > 0) {
      --(*stats_)->fail_reads;
      error = EIO;
    }
    if (error != 0) entry.error = error;
    --entry.in_flight;
    if (entry.is_guess) guess_bytes_ -= chunk_bytes(entry);
    if (entry.in_flight > 0) continue;
    const bool gives_up = entry.is_cancelled || (entry.is_guess && entry.error != 0);
    if (entry.next == entry.end || gives_up) end(index, done);
  }
  if (block) note_wait(start_ns);
  if (backend_->in_flight() == 0) busy_since_ns_ = 0;
}

// A demanded part that failed is tried again; a guess is not, it is read anew when it is demanded.
void PartReads::end(uint32_t index, std::vector<PartDone>* done) {
  Entry& entry = entries_[index];
  const ExpertPart& part = part_of(entry);
  if (plan_.testing && !entry.is_guess && (*stats_)->fail_slices > 0) {
    --(*stats_)->fail_slices;
    entry.error = EIO;
    entry.tries = kMaxTries;
  }
  if (entry.error != 0 && !entry.is_guess && ++entry.tries < kMaxTries) {
    add((*stats_)->read_retries, 1);
    entry.error = 0;
    entry.next = entry.first;
    demand_.push_front(index);
    return;
  }
  const bool is_whole = entry.error == 0 && !entry.is_cancelled;
  if (is_whole && entry.staging >= 0) {
    std::memcpy(entry.read.destination,
                staging_ + static_cast<uint64_t>(entry.staging) * staging_span_ +
                    (entry.slice_end - part.slice_bytes - entry.first),
                part.slice_bytes);
  }
  if (is_whole) delivered_bytes_ += part.slice_bytes;
  if (entry.staging >= 0) free_staging_.push_back(entry.staging);
  if (entry.is_guess) forget_guess(index);
  pending_bytes_ -= part.slice_bytes;
  if (!entry.is_guess && --n_demand_ == 0) demand_ended_ns_ = now_ns();
  entry.in_use = false;
  free_entries_.push_back(index);
  done->push_back({entry.read, entry.error, entry.is_guess, entry.is_cancelled});
}

void PartReads::note_wait(uint64_t start_ns) {
  const uint64_t now = now_ns();
  add((*stats_)->wait_ns, now - start_ns);
  if (now - start_ns < kReallyWaitedNs) return;
  // Waited for: the drive was busy up to now.
  if (busy_since_ns_ != 0) {
    rate_bytes_ += delivered_bytes_ - busy_from_bytes_;
    rate_ns_ += now - busy_since_ns_;
  }
  busy_since_ns_ = now;
  busy_from_bytes_ = delivered_bytes_;
}

bool PartReads::take_drive_rate(uint64_t* nbytes, uint64_t* elapsed_ns) {
  if (rate_bytes_ < kEnoughBytes || rate_ns_ == 0) return false;
  *nbytes = rate_bytes_;
  *elapsed_ns = rate_ns_;
  rate_bytes_ = rate_ns_ = 0;
  return true;
}

}  // namespace guanaco
