// Least recently used: one doubly linked list over the slots of each class, coldest first.
#include "residents.h"

namespace guanaco {

namespace {

class Lru final : public Policy {
 public:
  explicit Lru(const PolicyShape& shape) : residents_(shape) {
    for (const uint32_t n_slots : shape.n_slots) lists_.emplace_back(n_slots);
  }

  void selected(const Selection& selection) override {
    residents_.used(selection);
    List& list = lists_[residents_.size_class(selection.group)];
    for (size_t i = selection.n_transient; i < selection.n; ++i) {
      const int32_t slot = residents_.slot_of(residents_.key(selection.group, selection.experts[i]));
      if (slot >= 0) list.move_to_end(static_cast<uint32_t>(slot));
    }
  }

  void placed(uint32_t group, int32_t expert, uint32_t slot, bool transient) override {
    const uint32_t size_class = residents_.size_class(group);
    residents_.placed(group, expert, slot, transient);
    List& list = lists_[size_class];
    if (transient) {
      list.move_before(list.coldest(), slot);
      return;
    }
    // Hits that the selection lists behind this miss are more recent.
    const std::vector<uint32_t>& keys = residents_.keys(size_class);
    const uint64_t use = residents_.last_use(residents_.key(group, expert));
    uint32_t at = list.end();
    while (list.before(at) != list.end() && keys[list.before(at)] != kNoKey &&
           residents_.last_use(keys[list.before(at)]) > use) {
      at = list.before(at);
    }
    list.move_before(at, slot);
  }

  void emptied(uint32_t size_class, uint32_t slot) override {
    residents_.emptied(size_class, slot);
    lists_[size_class].move_before(lists_[size_class].coldest(), slot);
  }

  int32_t victim(uint32_t size_class, const uint32_t* pins) override {
    const List& list = lists_[size_class];
    const std::vector<uint32_t>& keys = residents_.keys(size_class);
    for (uint32_t slot = list.coldest(); slot != list.end(); slot = list.after(slot)) {
      if (pins[slot] == 0 && keys[slot] != kNoKey) return static_cast<int32_t>(slot);
    }
    return -1;
  }

  double worth(uint32_t group, int32_t expert) const override {
    return static_cast<double>(residents_.last_use(residents_.key(group, expert)));
  }

 private:
  class List {
   public:
    explicit List(uint32_t n_slots) : prev_(n_slots + 1), next_(n_slots + 1), end_(n_slots) {
      for (uint32_t i = 0; i <= n_slots; ++i) {
        prev_[i] = i == 0 ? end_ : i - 1;
        next_[i] = i == end_ ? 0 : i + 1;
      }
    }
    uint32_t end() const { return end_; }
    uint32_t coldest() const { return next_[end_]; }
    uint32_t before(uint32_t slot) const { return prev_[slot]; }
    uint32_t after(uint32_t slot) const { return next_[slot]; }
    void move_to_end(uint32_t slot) { move_before(end_, slot); }
    void move_before(uint32_t at, uint32_t slot) {
      if (at == slot) return;
      next_[prev_[slot]] = next_[slot];
      prev_[next_[slot]] = prev_[slot];
      prev_[slot] = prev_[at];
      next_[slot] = at;
      next_[prev_[at]] = slot;
      prev_[at] = slot;
    }

   private:
    std::vector<uint32_t> prev_, next_;
    uint32_t end_;  // sentinel: next is the coldest, prev the most recent
  };

  Residents residents_;
  std::vector<List> lists_;
};

}  // namespace

std::unique_ptr<Policy> make_lru(const PolicyShape& shape) { return std::make_unique<Lru>(shape); }

}  // namespace guanaco
