#include "cache.h"

#include <algorithm>

namespace guanaco {

namespace {

constexpr uint32_t kMediansPerTurnover = 8;
constexpr uint64_t kCallsPerReport = 64;  // a report looks at every slot

}  // namespace

Cache::Cache(const PolicyShape& shape, std::unique_ptr<Policy> policy)
    : size_class_(shape.size_class), policy_(std::move(policy)), use_(shape), classes_(shape.n_slots.size()) {
  for (const uint32_t n_expert : shape.n_expert) {
    residency_.emplace_back(n_expert, -1);
    evicted_at_.emplace_back(n_expert, 0);
  }
  for (size_t i = 0; i < classes_.size(); ++i) {
    Class& cls = classes_[i];
    const uint32_t n_slots = shape.n_slots[i];
    cls.slots.resize(n_slots);
    cls.pins.assign(n_slots, 0);
    cls.n_free = n_slots;
    cls.is_transient.assign(n_slots, false);
    for (uint32_t slot = n_slots; slot > 0; --slot) cls.empty.push_back(slot - 1);
  }
}

bool Cache::fits(uint32_t group, const std::vector<int32_t>& experts) const {
  const Class& cls = classes_[size_class_[group]];
  // A resident expert that nobody pins takes a free slot too: its own.
  const auto needs_free = [&](int32_t expert) {
    const int32_t slot = slot_of(group, expert);
    return slot < 0 || cls.pins[static_cast<size_t>(slot)] == 0;
  };
  return static_cast<size_t>(std::count_if(experts.begin(), experts.end(), needs_free)) <= cls.n_free;
}

void Cache::serve(const Selection& selection, Served* out) {
  out->slots.assign(selection.n, 0);
  out->missed.clear();
  out->evicted.clear();
  if (selection.n == 0) return;
  const uint32_t size_class = size_class_[selection.group];
  Class& cls = classes_[size_class];
  policy_->selected(selection);
  use_.selected(selection);
  // Pin what is resident first, so that no miss takes the slot of a hit.
  for (size_t i = 0; i < selection.n; ++i) {
    const int32_t resident = slot_of(selection.group, selection.experts[i]);
    if (resident < 0) {
      out->missed.push_back(i);
      continue;
    }
    const uint32_t slot = static_cast<uint32_t>(resident);
    out->slots[i] = slot;
    pin(size_class, slot);
    if (i >= selection.n_transient) make_lasting(&cls, slot);
  }
  for (const size_t i : out->missed) {
    const uint32_t slot = take_slot(size_class, out);
    out->slots[i] = slot;
    pin(size_class, slot);
    place(selection.group, selection.experts[i], slot, i < selection.n_transient);
  }
  policy_->served(selection.group);
  counts_.accesses += selection.n;
  counts_.hits += selection.n - out->missed.size();
  counts_.misses += out->missed.size();
}

void Cache::learn(uint32_t group, const int32_t* experts, size_t n) {
  const Selection selection{group, experts, n, 0, {}};
  policy_->selected(selection);
  use_.selected(selection);
  for (size_t i = 0; i < n; ++i) {
    const int32_t resident = slot_of(group, experts[i]);
    if (resident >= 0) make_lasting(&classes_[size_class_[group]], static_cast<uint32_t>(resident));
  }
  policy_->served(group);
}

void Cache::serve_in_waves(const Selection& selection, Served* out, std::vector<uint32_t>* taken) {
  out->slots.assign(selection.n, 0);
  out->missed.clear();
  out->evicted.clear();
  taken->clear();
  const uint32_t size_class = size_class_[selection.group];
  Class& cls = classes_[size_class];
  const auto is_missing = [&](int32_t expert) { return slot_of(selection.group, expert) < 0; };
  const size_t n_missing =
      static_cast<size_t>(std::count_if(selection.experts, selection.experts + selection.n, is_missing));
  // The other half goes on holding what decoding uses.
  const size_t n_taken = std::min(n_missing, std::max<size_t>(cls.n_free / 2, 1));
  for (size_t i = 0; i < n_taken; ++i) {
    taken->push_back(take_slot(size_class, out));
    empty_slot(size_class, taken->back());
    pin(size_class, taken->back());
  }
  for (size_t i = 0; i < selection.n; ++i) {
    if (is_missing(selection.experts[i])) {
      out->missed.push_back(i);
      continue;
    }
    out->slots[i] = static_cast<uint32_t>(slot_of(selection.group, selection.experts[i]));
    pin(size_class, out->slots[i]);
  }
  counts_.accesses += selection.n;
  counts_.hits += selection.n - out->missed.size();
  counts_.misses += out->missed.size();
}

int32_t Cache::place_guess(uint32_t group, int32_t expert, Served* out) {
  out->evicted.clear();
  const uint32_t size_class = size_class_[group];
  Class& cls = classes_[size_class];
  if (slot_of(group, expert) >= 0 || cls.n_free == 0) return -1;
  if (cls.empty.empty() && !has_free_transient(cls)) {
    if (cls.until_median == 0) update_median(&cls);
    // Looked at before it is taken: what decoding uses often is not given up for a guess.
    const int32_t victim = policy_->victim(size_class, cls.pins.data());
    if (victim < 0 || is_hot(cls.slots[static_cast<size_t>(victim)], cls.median_use)) return -1;
    evict(size_class, static_cast<uint32_t>(victim), out);
    place(group, expert, static_cast<uint32_t>(victim), false);
    return victim;
  }
  const uint32_t slot = take_slot(size_class, out);
  place(group, expert, slot, false);
  return static_cast<int32_t>(slot);
}

bool Cache::has_free_transient(const Class& cls) const {
  return std::any_of(cls.transient.begin(), cls.transient.end(), [&](uint32_t slot) { return cls.pins[slot] == 0; });
}

int32_t Cache::place_empty(uint32_t group, int32_t expert) {
  const uint32_t size_class = size_class_[group];
  if (slot_of(group, expert) >= 0 || classes_[size_class].empty.empty()) return -1;
  const uint32_t slot = take_slot(size_class, nullptr);
  place(group, expert, slot, false);
  return static_cast<int32_t>(slot);
}

uint32_t Cache::take_slot(uint32_t size_class, Served* out) {
  Class& cls = classes_[size_class];
  if (!cls.empty.empty()) {
    const uint32_t slot = cls.empty.back();
    cls.empty.pop_back();
    return slot;
  }
  const auto last_placed = std::find_if(cls.transient.rbegin(), cls.transient.rend(),
                                        [&](uint32_t slot) { return cls.pins[slot] == 0; });
  const uint32_t slot = last_placed != cls.transient.rend()
                            ? *last_placed
                            : static_cast<uint32_t>(policy_->victim(size_class, cls.pins.data()));
  evict(size_class, slot, out);
  return slot;
}

void Cache::evict(uint32_t size_class, uint32_t slot, Served* out) {
  Class& cls = classes_[size_class];
  const ExpertId old = cls.slots[slot];
  const size_t group = static_cast<size_t>(old.group), expert = static_cast<size_t>(old.expert);
  if (cls.until_median-- == 0) update_median(&cls);
  if (is_hot(old, cls.median_use)) ++counts_.evict_hot;
  ++counts_.evictions;
  residency_[group][expert] = -1;
  evicted_at_[group][expert] = cls.placements + 1;
  make_lasting(&cls, slot);
  out->evicted.push_back(old);
}

void Cache::place(uint32_t group, int32_t expert, uint32_t slot, bool transient) {
  Class& cls = classes_[size_class_[group]];
  cls.slots[slot] = {static_cast<int32_t>(group), expert};
  residency_[group][static_cast<size_t>(expert)] = static_cast<int32_t>(slot);
  const uint64_t evicted_at = evicted_at_[group][static_cast<size_t>(expert)];
  if (evicted_at != 0 && cls.placements + 1 - evicted_at <= cls.slots.size()) ++counts_.evict_reread;
  ++cls.placements;
  if (transient) {
    cls.is_transient[slot] = true;
    cls.transient.push_back(slot);
  }
  policy_->placed(group, expert, slot, transient);
}

void Cache::make_lasting(Class* cls, uint32_t slot) {
  if (!cls->is_transient[slot]) return;
  cls->is_transient[slot] = false;
  cls->transient.erase(std::find(cls->transient.begin(), cls->transient.end(), slot));
}

void Cache::pin(uint32_t size_class, uint32_t slot) {
  Class& cls = classes_[size_class];
  if (cls.pins[slot]++ == 0) --cls.n_free;
}

void Cache::unpin(uint32_t size_class, uint32_t slot) {
  Class& cls = classes_[size_class];
  if (--cls.pins[slot] == 0) ++cls.n_free;
}

void Cache::empty_slot(uint32_t size_class, uint32_t slot) {
  Class& cls = classes_[size_class];
  ExpertId& held = cls.slots[slot];
  if (held.group < 0) return;
  residency_[static_cast<size_t>(held.group)][static_cast<size_t>(held.expert)] = -1;
  held = ExpertId{};
  make_lasting(&cls, slot);
  policy_->emptied(size_class, slot);
}

bool Cache::abandon(uint32_t size_class, uint32_t slot) {
  Class& cls = classes_[size_class];
  empty_slot(size_class, slot);
  if (cls.pins[slot] != 0) return false;
  cls.empty.push_back(slot);
  return true;
}

void Cache::update_median(Class* cls) {
  if (!policy_->has_pins()) cls->median_use = median_use(*cls);
  cls->until_median = static_cast<uint32_t>(cls->slots.size()) / kMediansPerTurnover;
}

bool Cache::is_hot(const ExpertId& id, double median) const {
  const uint32_t group = static_cast<uint32_t>(id.group);
  return policy_->has_pins() ? policy_->is_pinned(group, id.expert) : use_.rate(group, id.expert) > median;
}

double Cache::median_use(const Class& cls) const {
  std::vector<double> rates;
  for (const ExpertId& id : cls.slots) {
    if (id.group >= 0) rates.push_back(use_.rate(static_cast<uint32_t>(id.group), id.expert));
  }
  if (rates.empty()) return 0.0;
  const auto middle = rates.begin() + static_cast<long>((rates.size() - 1) / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

uint64_t Cache::hot_slots() const {
  uint64_t n_hot = 0;
  for (const Class& cls : classes_) {
    const double median = policy_->has_pins() ? 0.0 : median_use(cls);
    n_hot += static_cast<uint64_t>(std::count_if(cls.slots.begin(), cls.slots.end(), [&](const ExpertId& id) {
      return id.group >= 0 && is_hot(id, median);
    }));
  }
  return n_hot;
}

PolicyShape policy_shape(const LoadPlan& plan) {
  PolicyShape shape;
  for (const ExpertGroup& group : plan.groups) {
    shape.n_expert.push_back(group.n_expert);
    shape.size_class.push_back(group.size_class);
    shape.top_k.push_back(group.top_k);
  }
  for (const SizeClass& size_class : plan.classes) shape.n_slots.push_back(size_class.slots);
  return shape;
}

std::unique_ptr<Cache> make_cache(const LoadPlan& plan) {
  const PolicyShape shape = policy_shape(plan);
  std::string error;
  auto cache = std::make_unique<Cache>(shape, make_policy(plan.policy, shape, &error));
  for (uint32_t g = 0; g < plan.groups.size(); ++g) {
    if (!plan.groups[g].prior.empty()) cache->prior(g, plan.groups[g].prior.data());
  }
  return cache;
}

void publish_counts(const Cache& cache, Stats* stats) {
  const CacheCounts& counts = cache.counts();
  const auto put = [](Word& word, uint64_t value) { word.store(value, std::memory_order_relaxed); };
  StatsBlock& block = **stats;
  put(block.accesses, counts.accesses);
  put(block.hits, counts.hits);
  put(block.misses, counts.misses);
  put(block.evictions, counts.evictions);
  put(block.evict_hot, counts.evict_hot);
  put(block.evict_reread, counts.evict_reread);
  add(block.prefetch_calls, 1);
  if (block.prefetch_calls % kCallsPerReport != 1) return;
  const PolicyReport report = cache.policy().report();
  put(block.hot_slots, cache.hot_slots());
  put(block.pinned, report.pinned);
  put(block.least_pin_budget, report.least_budget);
  put(block.most_pin_budget, report.most_budget);
}

}  // namespace guanaco
