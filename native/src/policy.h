// What an eviction policy may know and decide. A policy sees the past only: selections as they are served.
//
// One instance per store, over all groups (a group is the experts of one MoE layer, numbered in the order of the
// layers) and all size classes; used from the graph thread. Slots are indices into their class. Slots of experts that
// only a prompt batch used are the Cache's to give away: it asks for a victim when there is none of those.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace guanaco {

struct PolicyShape {
  std::vector<uint32_t> n_expert;    // [group]
  std::vector<uint32_t> size_class;  // [group]
  std::vector<uint32_t> n_slots;     // [class]
  std::vector<uint32_t> top_k;       // [group]; 0: unknown
};

// What the router picked for each token of a prompt batch, row by row; no rows when decoding.
struct BatchRows {
  const int32_t* ids = nullptr;
  size_t n = 0;
  size_t n_used = 0;  // in a row
  const int32_t* row(size_t i) const { return ids + i * n_used; }
};

// One layer's distinct experts. The first `n_transient` belong to a prompt batch only: they are in nobody's use, though
// a policy may learn from their rows what is likely to be.
// A token starts where `group` is not greater than that of the selection before; with rows, as many as there are.
struct Selection {
  uint32_t group = 0;
  const int32_t* experts = nullptr;
  size_t n = 0;
  size_t n_transient = 0;
  BatchRows rows = {};
};

struct PolicyReport {
  uint64_t pinned = 0;                    // experts with a permanent pin
  uint32_t least_budget = 0, most_budget = 0;  // permanent pins a layer may have
  bool warmed = true;
};

class Policy {
 public:
  virtual ~Policy() = default;
  // What is known before the first selection: the uses a token of each of the group's experts. It counts as what was
  // seen long ago and fades as that does.
  virtual void prior(uint32_t /*group*/, const double* /*use*/) {}
  // A layer's demand, before hits and misses are told apart. Until served() pins are only added.
  virtual void selected(const Selection& selection) = 0;
  virtual void placed(uint32_t group, int32_t expert, uint32_t slot, bool transient) = 0;
  // A read failed: the slot holds nothing.
  virtual void emptied(uint32_t size_class, uint32_t slot) = 0;
  // The slot to reuse, or -1. One with a pin is in use by the running graph or by a read and is not named. One whose pin
  // was taken away since the last selected() need not be thought of.
  virtual int32_t victim(uint32_t size_class, const uint32_t* pins) = 0;
  // The greater, the sooner used, as of the layer last selected. Comparable within one policy only.
  virtual double worth(uint32_t group, int32_t expert) const = 0;
  // All of the layer's demand is placed.
  virtual void served(uint32_t /*group*/) {}

  // True for a policy with permanent pins; is_pinned() then tells which experts have one.
  virtual bool has_pins() const { return false; }
  virtual bool is_pinned(uint32_t /*group*/, int32_t /*expert*/) const { return false; }
  virtual PolicyReport report() const { return {}; }
};

bool is_policy(const std::string& name);
// Null, with a reason, for a name that is_policy() does not know.
std::unique_ptr<Policy> make_policy(const std::string& name, const PolicyShape& shape, std::string* error);

std::unique_ptr<Policy> make_lru(const PolicyShape& shape);
std::unique_ptr<Policy> make_lfu(const PolicyShape& shape);
std::unique_ptr<Policy> make_cycle(const PolicyShape& shape);
std::unique_ptr<Policy> make_recall(const PolicyShape& shape);
std::unique_ptr<Policy> make_herd(const PolicyShape& shape);

}  // namespace guanaco
