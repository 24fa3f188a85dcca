// The base of policies that rank all slots of a class: once per selection, not once per miss.
//
// Owns the mirror of residency, the position in the ring of layers and the list of victims. Leaves what is counted
// and how slots compare to the policy.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "policy.h"
#include "residents.h"

namespace guanaco {

// The few best victims of a class, best first: the greatest value, among equals the least recently used.
class VictimList {
 public:
  // Empties the list; it will hold up to `room` slots, but never more than 16.
  void clear(size_t room) {
    n_ = 0;
    room_ = std::min(room, kMostRoom);
  }
  bool is_empty() const { return n_ == 0; }
  bool is_full() const { return n_ == room_; }
  // The value of the last; there has to be one.
  double least() const { return victims_[n_ - 1].value; }
  // False: a slot of this value would not get in.
  bool wants(double value) const { return !is_full() || value >= least(); }
  void offer(double value, uint64_t last_use, uint32_t slot);
  // The best without a pin, or -1.
  int32_t best(const uint32_t* pins) const;

 private:
  static constexpr size_t kMostRoom = 16;
  struct Victim {
    double value;
    uint64_t last_use;
    uint32_t slot;
  };
  std::array<Victim, kMostRoom> victims_;
  size_t n_ = 0, room_ = 1;
};

class RankedPolicy : public Policy {
 public:
  explicit RankedPolicy(const PolicyShape& shape);
  void selected(const Selection& selection) final;
  void placed(uint32_t group, int32_t expert, uint32_t slot, bool transient) final;
  void emptied(uint32_t size_class, uint32_t slot) final;
  int32_t victim(uint32_t size_class, const uint32_t* pins) final;
  void served(uint32_t group) final;

 protected:
  virtual void learn(const Selection& selection, bool token_starts) = 0;
  // Offers the slots that are neither empty nor pinned.
  virtual void rank(uint32_t size_class, const uint32_t* pins, VictimList* list) = 0;
  virtual void on_placed(uint32_t /*size_class*/, uint32_t /*slot*/) {}
  virtual void on_emptied(uint32_t /*size_class*/, uint32_t /*slot*/) {}

  const Residents& residents() const { return residents_; }
  // The way from the layer being served to `group`, in rings of all layers.
  double ring_distance(uint32_t group) const { return distance_[group]; }

 private:
  Residents residents_;
  const uint32_t n_groups_;
  std::vector<double> ring_;      // [layers ahead]
  std::vector<double> distance_;  // [group], as of the last selection
  uint32_t group_ = 0;        // last selected
  bool any_selected_ = false;
  bool serving_ = false;  // between selected() and served()
  bool is_ranked_ = false;  // the list is right: up to served(), and from there up to the next selection
  size_t n_missing_ = 1;  // of the last selection: so many victims at most
  uint32_t ranked_class_ = 0;
  VictimList list_;
};

}  // namespace guanaco
