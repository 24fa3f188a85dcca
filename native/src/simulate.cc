// The simulator's C interface: the library's own cache and policies, driven by a trace instead of an engine.
//
// Owns: checking what comes from outside. Not part of the core library: these names have to stay visible.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cache.h"
#include "guanaco/guanaco.h"

using guanaco::Cache;
using guanaco::PolicyShape;
using guanaco::Selection;

namespace {

constexpr int kDoesNotFit = -1, kOutOfRange = -2;
constexpr uint32_t kMostExperts = 1u << 16;  // a victim is named by 16 bits of group and 16 of expert
constexpr uint32_t kMostGroups = 1u << 15;
constexpr uint32_t kMostSlots = 1u << 24;

}  // namespace

struct guanaco_sim {
  PolicyShape shape;
  std::unique_ptr<Cache> cache;
  guanaco::Served served;
  std::vector<uint32_t> taken;
  std::vector<int32_t> experts;
  std::vector<bool> seen;  // [expert], false between calls
};

namespace {

bool check_shape(const PolicyShape& shape, std::string* error) {
  if (shape.n_expert.empty() || shape.n_expert.size() > kMostGroups) {
    *error = "there are no groups of experts, or more than 32768";
    return false;
  }
  for (size_t group = 0; group < shape.n_expert.size(); ++group) {
    const std::string where = "group " + std::to_string(group);
    if (shape.n_expert[group] == 0 || shape.n_expert[group] > kMostExperts) {
      *error = where + " has " + std::to_string(shape.n_expert[group]) + " experts; 1 to 65536 work";
      return false;
    }
    if (shape.size_class[group] >= shape.n_slots.size()) {
      *error = where + " has size class " + std::to_string(shape.size_class[group]) + " of " +
               std::to_string(shape.n_slots.size());
      return false;
    }
    if (shape.top_k[group] > shape.n_expert[group]) {
      *error = where + " has fewer experts than a token uses";
      return false;
    }
  }
  for (const uint32_t n_slots : shape.n_slots) {
    if (n_slots > 0 && n_slots <= kMostSlots) continue;
    *error = "a size class has " + std::to_string(n_slots) + " slots; 1 to 16777216 work";
    return false;
  }
  return true;
}

// Whether sim->experts are different experts of the group.
bool are_distinct(guanaco_sim* sim, uint32_t group) {
  const std::vector<int32_t>& experts = sim->experts;
  bool good = true;
  size_t n_marked = 0;
  for (; n_marked < experts.size() && good; ++n_marked) {
    const int32_t expert = experts[n_marked];
    good = expert >= 0 && static_cast<uint32_t>(expert) < sim->shape.n_expert[group] &&
           !sim->seen[static_cast<size_t>(expert)];
    if (!good) break;
    sim->seen[static_cast<size_t>(expert)] = true;
  }
  for (size_t i = 0; i < n_marked; ++i) sim->seen[static_cast<size_t>(experts[i])] = false;
  return good;
}

// Serves sim->experts.
int serve(guanaco_sim* sim, uint32_t group, size_t n_transient, const guanaco::BatchRows& rows = {}) {
  const std::vector<int32_t>& experts = sim->experts;
  if (!are_distinct(sim, group)) return kOutOfRange;
  Cache& cache = *sim->cache;
  if (!cache.fits(group, experts)) return kDoesNotFit;
  cache.serve({group, experts.data(), experts.size(), n_transient, rows}, &sim->served);
  for (const uint32_t slot : sim->served.slots) cache.unpin(cache.size_class(group), slot);
  return static_cast<int>(sim->served.missed.size());
}

// Lets sim->experts pass through.
int pass(guanaco_sim* sim, uint32_t group) {
  const std::vector<int32_t>& experts = sim->experts;
  if (!are_distinct(sim, group)) return kOutOfRange;
  Cache& cache = *sim->cache;
  const uint32_t size_class = cache.size_class(group);
  cache.serve_in_waves({group, experts.data(), experts.size(), 0, {}}, &sim->served, &sim->taken);
  for (const size_t i : sim->served.missed) sim->seen[i] = true;
  for (size_t i = 0; i < experts.size(); ++i) {
    if (!sim->seen[i]) cache.unpin(size_class, sim->served.slots[i]);
  }
  for (const size_t i : sim->served.missed) sim->seen[i] = false;
  for (const uint32_t slot : sim->taken) {
    cache.unpin(size_class, slot);
    cache.abandon(size_class, slot);
  }
  return static_cast<int>(sim->served.missed.size());
}

void list_victims(const guanaco_sim& sim, uint32_t* victims, uint32_t* n_victims) {
  for (const guanaco::ExpertId& id : sim.served.evicted) {
    victims[(*n_victims)++] = static_cast<uint32_t>(id.group) << 16 | static_cast<uint32_t>(id.expert);
  }
}

}  // namespace

extern "C" {

guanaco_sim* guanaco_sim_create(const char* policy, uint32_t n_groups, const uint32_t* n_expert,
                                const uint32_t* size_class, const uint32_t* top_k, uint32_t n_classes,
                                const uint32_t* n_slots, char* error, unsigned long error_bytes) try {
  auto sim = std::make_unique<guanaco_sim>();
  PolicyShape& shape = sim->shape;
  shape.n_expert.assign(n_expert, n_expert + n_groups);
  shape.size_class.assign(size_class, size_class + n_groups);
  shape.top_k.assign(top_k, top_k + n_groups);
  shape.n_slots.assign(n_slots, n_slots + n_classes);
  std::string reason;
  std::unique_ptr<guanaco::Policy> made;
  if (check_shape(shape, &reason)) made = guanaco::make_policy(policy, shape, &reason);
  if (error_bytes > 0) std::snprintf(error, error_bytes, "%s", reason.c_str());
  if (made == nullptr) return nullptr;
  sim->cache = std::make_unique<Cache>(shape, std::move(made));
  sim->seen.assign(*std::max_element(shape.n_expert.begin(), shape.n_expert.end()), false);
  return sim.release();
} catch (const std::bad_alloc&) {
  if (error_bytes > 0) std::snprintf(error, error_bytes, "there is not enough memory for so many experts");
  return nullptr;
}

void guanaco_sim_destroy(guanaco_sim* sim) { delete sim; }

int guanaco_sim_prior(guanaco_sim* sim, uint32_t group, const double* use, uint32_t n) {
  const auto is_share = [](double value) { return value >= 0 && value <= 1; };
  if (group >= sim->shape.n_expert.size() || n != sim->shape.n_expert[group] || !std::all_of(use, use + n, is_share)) {
    return kOutOfRange;
  }
  sim->cache->prior(group, use);
  return 0;
}

int guanaco_sim_serve(guanaco_sim* sim, uint32_t group, const int32_t* experts, uint32_t n, uint32_t n_transient,
                      const int32_t* rows, uint32_t n_rows, uint32_t n_used, uint32_t* victims, uint32_t* n_victims) {
  *n_victims = 0;
  if (group >= sim->shape.n_expert.size() || n_transient > n) return kOutOfRange;
  const uint32_t n_expert = sim->shape.n_expert[group];
  const auto is_expert = [&](int32_t id) { return id >= 0 && static_cast<uint32_t>(id) < n_expert; };
  if (n_used > n_expert || !std::all_of(rows, rows + static_cast<size_t>(n_rows) * n_used, is_expert)) return kOutOfRange;
  sim->experts.assign(experts, experts + n);
  const int n_missed = serve(sim, group, n_transient, {rows, n_rows, n_used});
  if (n_missed >= 0) list_victims(*sim, victims, n_victims);
  return n_missed;
}

int guanaco_sim_pass(guanaco_sim* sim, uint32_t group, const int32_t* experts, uint32_t n, uint32_t* victims,
                     uint32_t* n_victims) {
  *n_victims = 0;
  if (group >= sim->shape.n_expert.size()) return kOutOfRange;
  sim->experts.assign(experts, experts + n);
  const int n_missed = pass(sim, group);
  if (n_missed >= 0) list_victims(*sim, victims, n_victims);
  return n_missed;
}

int guanaco_sim_replay(guanaco_sim* sim, const int16_t* ids, uint32_t n_tokens, uint64_t counters[4]) {
  const size_t n_groups = sim->shape.n_expert.size();
  const size_t k = *std::max_element(sim->shape.top_k.begin(), sim->shape.top_k.end());
  if (k == 0) return kOutOfRange;
  const guanaco::CacheCounts before = sim->cache->counts();
  std::chrono::steady_clock::duration spent{};
  int result = 0;
  for (size_t i = 0; i < n_tokens * n_groups && result >= 0; ++i) {
    sim->experts.clear();
    for (const int16_t* id = ids + i * k; id < ids + (i + 1) * k; ++id) {
      if (*id >= 0) sim->experts.push_back(*id);
    }
    const auto start = std::chrono::steady_clock::now();
    result = serve(sim, static_cast<uint32_t>(i % n_groups), 0);
    spent += std::chrono::steady_clock::now() - start;
  }
  const guanaco::CacheCounts& after = sim->cache->counts();
  counters[0] = after.hits - before.hits;
  counters[1] = after.misses - before.misses;
  counters[2] = after.evictions - before.evictions;
  counters[3] = static_cast<uint64_t>(std::chrono::nanoseconds(spent).count());
  return std::min(result, 0);
}

void guanaco_sim_evictions(const guanaco_sim* sim, uint64_t* hot, uint64_t* reread) {
  *hot = sim->cache->counts().evict_hot;
  *reread = sim->cache->counts().evict_reread;
}

}  // extern "C"
