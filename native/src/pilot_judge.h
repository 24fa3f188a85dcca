// Whether reading a guessed expert early pays, from what was measured of earlier guesses and of the drive.
//
// Owns: how often a guess of each rank was right, how fast the drive reads, how long it has nothing better to do.
// Pure arithmetic on what it is told; reads no clock. Leaves guessing to the pilot and reading to the store.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace guanaco {

class PilotJudge {
 public:
  static constexpr size_t kRanks = 32;

  // A guess of this rank that was not resident turned out right or wrong, whether it was read or not.
  void judged(size_t rank, bool right);
  // The drive delivered so many bytes in this time, with something to do all the time.
  void drive_read(uint64_t nbytes, uint64_t elapsed_ns);
  // Between a guess and the selection it was for, the drive had nothing demanded to read for so long.
  void idled(uint64_t elapsed_ns);

  // A layer's guesses have one such time between them.
  void begin_layer() { left_ns_ = idle_ns_; }
  // True when reading `nbytes` for a guess of this rank is worth it.
  bool pays(size_t rank, uint64_t nbytes) const;
  // It is going to be read.
  void spend(uint64_t nbytes);
  // How much of guesses may be with the drive at a time: what it reads in that time, within bounds.
  uint64_t most_bytes() const;

  // Guessing has a cost of its own. When nothing paid for long, it is worth it only now and then.
  bool is_worth_guessing();
  void guessed(bool any_paid) { n_in_vain_ = any_paid ? 0 : n_in_vain_ + 1; }

  double precision(size_t rank) const { return right_[rank < kRanks ? rank : kRanks - 1]; }
  double bytes_per_ns() const { return read_ns_ > 0 ? read_bytes_ / read_ns_ : 0; }
  double idle_ns() const { return idle_ns_; }

 private:
  bool knows_time() const { return read_ns_ > 0 && idle_ns_ > 0; }
  static std::array<double, kRanks> initial();

  std::array<double, kRanks> right_ = initial(), n_judged_{};
  double read_bytes_ = 0, read_ns_ = 0;  // of late
  double idle_ns_ = 0, left_ns_ = 0;
  uint64_t n_in_vain_ = 0, n_left_out_ = 0;
};

}  // namespace guanaco
