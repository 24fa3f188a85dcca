// Which experts of the next layer tend to follow which of this one: counts learned while running.
//
// Owns: one matrix per pair of neighbouring layers and its decay. The best candidates are cut where their summed
// probability reaches the mass asked for. Pure bookkeeping. Refuses to take more memory than it was given: experts that
// are seen later are then not learned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace guanaco {

class Transition {
 public:
  explicit Transition(double mass, uint64_t most_bytes = 32u << 20) : mass_(mass), most_bytes_(most_bytes) {}

  // `from` was followed by `to` in the next layer of the same token.
  void learn(uint32_t group, const std::vector<int32_t>& from, uint32_t next_group, uint32_t n_next,
             const std::vector<int32_t>& to);
  // The experts of `next_group` that carry the mass after `from`, best first; at most `most`.
  void guess(uint32_t group, const std::vector<int32_t>& from, uint32_t next_group, size_t most,
             std::vector<int32_t>* experts);

  uint64_t nbytes() const { return nbytes_; }

 private:
  struct Matrix {
    uint32_t next_group = 0, n_next = 0;
    std::vector<std::vector<uint16_t>> rows;  // [expert] -> counts, empty until seen
    std::vector<uint32_t> sums;
  };

  const double mass_;
  const uint64_t most_bytes_;
  uint64_t nbytes_ = 0;
  std::unordered_map<uint32_t, Matrix> matrices_;  // by group
  std::vector<double> scores_;
};

}  // namespace guanaco
