#include "store.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace guanaco {

namespace {

uint64_t round_up(uint64_t x, uint64_t to) { return (x + to - 1) / to * to; }

}  // namespace

Store::Store(const LoadPlan& plan, const OpenFiles& files, ReadBackend* backend, Stats* stats)
    : plan_(plan), stats_(stats), classes_(plan.classes.size()), cache_(make_cache(plan)),
      reads_(plan, files, backend, stats) {
  for (size_t i = 0; i < classes_.size(); ++i) {
    classes_[i].plan = &plan.classes[i];
    classes_[i].fills.resize(plan.classes[i].slots);
  }
}

Store::~Store() {
  reads_.drain();
  if (arena_ != nullptr) munmap(arena_, arena_map_bytes_);
}

bool Store::allocate(std::string* error) {
  uint64_t total = 0;
  for (const Class& cls : classes_) total += round_up(cls.plan->slots * cls.plan->stride_bytes, kHugePage);
  arena_map_bytes_ = total + kHugePage;
  arena_ = map_anonymous(arena_map_bytes_);
  if (arena_ == nullptr) {
    *error = "cannot map the expert arena of " + std::to_string(total) + " bytes: " + std::strerror(errno);
    return false;
  }
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
  if (!reads_.allocate(error)) return false;
  (*stats_)->arena_bytes = total;
  return true;
}

char* Store::part_base(uint32_t group, uint32_t part) const {
  const ExpertPart& info = plan_.groups[group].parts[part];
  // Aligned slices keep their place in the first block; others are moved to its start.
  const uint64_t head = info.is_aligned() ? info.offset % kPage : 0;
  const Class& cls = class_of(group);
  return cls.base + cls.plan->part_offsets[part] + head;
}

bool Store::acquire(uint32_t group, const std::vector<uint32_t>& part_order, size_t n_transient, Lease* lease,
                    const BatchRows& rows) {
  reap(false);  // nothing more is read for guesses before it is known which were right
  idle_ns_ = reads_.has_demand() ? 0 : now_ns() - std::max(served_ns_, reads_.demand_ended_ns());
  settle_guesses(group, lease->experts);
  const std::vector<uint32_t>& order = whole_order(group, part_order);
  // Reads that nobody waits for any more may still hold slots; give them back before refusing.
  bool fits = cache_->fits(group, lease->experts);
  for (; !fits && !reads_.is_idle(); fits = cache_->fits(group, lease->experts)) collect(true);
  if (!fits) {
    for (const uint32_t part : order) promote(group, part);
    start();
    return false;
  }
  cache_->serve({group, lease->experts.data(), lease->experts.size(), n_transient, rows}, &served_);
  lease->group = group;
  lease->slots = served_.slots;
  lease->loading.clear();
  lease->waves.on = false;
  lease->active = true;
  std::vector<Fill>& fills = class_of(group).fills;
  for (const size_t i : served_.missed) fill(group, lease->slots[i], false);
  for (const uint32_t slot : lease->slots) {
    if (fills[slot].missing != 0) lease->loading.push_back(slot);
    if (!fills[slot].guessed) continue;
    fills[slot].guessed = false;
    add((*stats_)->pilot_useful, 1);
  }
  for (const uint32_t part : order) {
    promote(group, part);
    for (const size_t i : served_.missed) reads_.demand(pinned_read(group, lease->experts[i], lease->slots[i], part));
  }
  start();
  publish_counts(*cache_, stats_);
  served_ns_ = now_ns();
  return true;
}

const std::vector<uint32_t>& Store::whole_order(uint32_t group, const std::vector<uint32_t>& part_order) {
  order_ = part_order;
  for (uint32_t part = 0; part < plan_.groups[group].parts.size(); ++part) {
    if (std::find(part_order.begin(), part_order.end(), part) == part_order.end()) order_.push_back(part);
  }
  return order_;
}

PartRead Store::pinned_read(uint32_t group, int32_t expert, uint32_t slot, uint32_t part) {
  const Class& cls = class_of(group);
  // Held by the read: never reused while the drive may write into it.
  cache_->pin(cache_->size_class(group), slot);
  return {group, slot, part, expert, cls.base + slot * cls.plan->stride_bytes + cls.plan->part_offsets[part]};
}

void Store::start() {
  reads_.start();
  while (reads_.wants_guess() && begin_guess()) reads_.start();
}

void Store::finish_reads() {
  guesses_.experts.clear();
  while (!reads_.is_idle()) collect(true);
}

void Store::reap(bool block) {
  done_.clear();
  reads_.collect(block, &done_);
  for (const PartDone& done : done_) take_in(done);
}

void Store::collect(bool block) {
  reap(block);
  start();
}

void Store::take_in(const PartDone& done) {
  const PartRead& read = done.read;
  Fill& fill = class_of(read.group).fills[read.slot];
  if (done.error == 0 && !done.is_cancelled) {
    fill.missing &= ~(1u << read.part);
  } else if (!done.is_cancelled) {
    fill.failed = true;
    if (!done.is_guess) {
      add((*stats_)->read_errors, 1);
      const ExpertPart& part = plan_.groups[read.group].parts[read.part];
      error_ = "reading expert " + std::to_string(read.expert) + " of " + part.tensor_name + " from " +
               plan_.files[part.file].path + " failed: " +
               (done.error == ENODATA ? "the file ends early" : std::strerror(done.error));
    }
  }
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

bool Store::has_failed(const Lease& lease) const {
  const Class& cls = class_of(lease.group);
  const std::vector<uint32_t>& slots = lease.waves.on ? lease.waves.taken : lease.loading;
  return std::any_of(slots.begin(), slots.end(), [&](uint32_t slot) { return cls.fills[slot].failed; });
}

bool Store::wait(Lease* lease, uint32_t part) {
  while (!arrived(*lease, part)) {
    if (!wait_for_more(lease)) return false;
  }
  return true;
}

bool Store::wait_for_more(Lease* lease) {
  if (has_failed(*lease) || reads_.is_idle()) return false;
  collect(true);
  return !has_failed(*lease);
}

void Store::release(Lease* lease) {
  if (!lease->active) return;
  lease->active = false;
  if (lease->waves.on) return end_waves(lease);
  const uint32_t size_class = cache_->size_class(lease->group);
  for (const uint32_t slot : lease->slots) {
    cache_->unpin(size_class, slot);
    const bool failed = classes_[size_class].fills[slot].failed;
    if (failed && !cache_->is_pinned(size_class, slot)) drop(lease->group, slot);
  }
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

void Store::guess(uint32_t group, const std::vector<uint32_t>& part_order, const std::vector<int32_t>& experts,
                  uint64_t most_bytes) {
  guesses_.group = group;
  guesses_.part_order = whole_order(group, part_order);
  guesses_.experts.assign(experts.begin(), experts.end());
  reads_.limit_guesses(most_bytes);
  start();
}

// Takes a slot for the best guess left. It is kept until the selection is known: a policy may well find an expert that
// is hardly used the best to give up. False when there is no guess left that may have a slot.
bool Store::begin_guess() {
  while (!guesses_.experts.empty()) {
    const int32_t expert = guesses_.experts.front();
    guesses_.experts.pop_front();
    const int32_t placed = cache_->place_guess(guesses_.group, expert, &guess_served_);
    if (placed < 0) continue;
    const uint32_t slot = static_cast<uint32_t>(placed);
    cache_->pin(cache_->size_class(guesses_.group), slot);
    held_.push_back({guesses_.group, slot, expert});
    fill(guesses_.group, slot, true);
    for (const uint32_t part : guesses_.part_order) reads_.guess(pinned_read(guesses_.group, expert, slot, part));
    add((*stats_)->pilot_slices, guesses_.part_order.size());
    return true;
  }
  return false;
}

// Which guesses were right is known.
void Store::settle_guesses(uint32_t group, const std::vector<int32_t>& experts) {
  guesses_.experts.clear();
  promoted_.clear();
  for (const Held& held : held_) {
    const uint32_t size_class = cache_->size_class(held.group);
    const Fill& fill = classes_[size_class].fills[held.slot];
    cache_->unpin(size_class, held.slot);
    const bool is_wanted =
        held.group == group && std::find(experts.begin(), experts.end(), held.expert) != experts.end();
    if (fill.missing == 0 && !fill.failed) continue;
    if (is_wanted && !fill.failed) {
      promoted_.push_back(held.slot);
    } else {
      abandon_guess(held);
    }
  }
  held_.clear();
}

void Store::promote(uint32_t group, uint32_t part) {
  for (const uint32_t slot : promoted_) reads_.promote(group, slot, part);
}

void Store::abandon_guess(const Held& held) {
  Fill& fill = class_of(held.group).fills[held.slot];
  done_.clear();
  uint64_t nbytes = reads_.cancel(held.group, held.slot, &done_);
  for (uint32_t part = 0; part < plan_.groups[held.group].parts.size(); ++part) {
    if ((fill.missing >> part & 1u) == 0) nbytes += plan_.groups[held.group].parts[part].slice_bytes;
  }
  add((*stats_)->pilot_wasted, 1);
  add((*stats_)->pilot_wasted_bytes, nbytes);
  fill = Fill{fill.missing, true, false};
  for (const PartDone& done : done_) take_in(done);
  if (fill.failed) drop(held.group, held.slot);
}

bool Store::preload(uint32_t group, int32_t expert) {
  const int32_t slot = cache_->place_empty(group, expert);
  if (slot < 0) return false;
  fill(group, static_cast<uint32_t>(slot), false);
  for (const uint32_t part : whole_order(group, {})) {
    reads_.demand(pinned_read(group, expert, static_cast<uint32_t>(slot), part));
  }
  return true;
}

std::string Store::take_error() {
  std::string error;
  error.swap(error_);
  return error;
}

}  // namespace guanaco
