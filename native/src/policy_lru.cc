// Least recently used: one doubly linked list over the slots, coldest first.
#include <vector>

#include "policy.h"

namespace guanaco {

namespace {

class Lru final : public Policy {
 public:
  explicit Lru(uint32_t n_slots) : prev_(n_slots + 1), next_(n_slots + 1), end_(n_slots) {
    for (uint32_t i = 0; i <= n_slots; ++i) {
      prev_[i] = i == 0 ? end_ : i - 1;
      next_[i] = i == end_ ? 0 : i + 1;
    }
  }

  void used(uint32_t slot) override {
    unlink(slot);
    insert_before(end_, slot);
  }

  void placed(uint32_t slot, bool transient) override {
    unlink(slot);
    // A prompt's experts are the first victims: they go to the cold end.
    insert_before(transient ? next_[end_] : end_, slot);
  }

  int32_t victim(const uint32_t* pins) override {
    for (uint32_t slot = next_[end_]; slot != end_; slot = next_[slot]) {
      if (pins[slot] == 0) return static_cast<int32_t>(slot);
    }
    return -1;
  }

 private:
  void unlink(uint32_t slot) {
    next_[prev_[slot]] = next_[slot];
    prev_[next_[slot]] = prev_[slot];
  }
  void insert_before(uint32_t at, uint32_t slot) {
    prev_[slot] = prev_[at];
    next_[slot] = at;
    next_[prev_[at]] = slot;
    prev_[at] = slot;
  }

  std::vector<uint32_t> prev_, next_;
  const uint32_t end_;  // sentinel: next is the coldest, prev the most recent
};

}  // namespace

std::unique_ptr<Policy> make_lru(uint32_t n_slots) { return std::make_unique<Lru>(n_slots); }

}  // namespace guanaco
