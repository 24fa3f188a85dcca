#include "pilot_judge.h"

#include <algorithm>

namespace guanaco {

namespace {

constexpr double kPrecisionMemory = 0.98;  // per judged guess of a rank, once many were judged
constexpr double kDriveMemory = 0.98;       // per measurement
constexpr double kLongestNs = 250e6;        // of a measurement: a long one says no more
constexpr double kIdleMemory = 0.95;
constexpr double kFirstPrecision = 0.7;    // until measured; about what a next-layer router reaches
constexpr double kFirstWeight = 8;         // judged guesses that this is worth
constexpr double kLeastPrecision = 0.25;   // below it even an idle drive is better left alone: a guess takes a slot
constexpr double kLeastBytes = 1u << 20, kFirstBytes = 4u << 20, kMostBytes = 16u << 20;
constexpr uint64_t kInVain = 256, kNowAndThen = 16;  // layers

double remembered(double old, double now, double memory) { return old == 0 ? now : memory * old + (1 - memory) * now; }

}  // namespace

std::array<double, PilotJudge::kRanks> PilotJudge::initial() {
  std::array<double, kRanks> all{};
  all.fill(kFirstPrecision);
  return all;
}

// A plain mean of what was assumed and what was seen, until the memory is full.
void PilotJudge::judged(size_t rank, bool right) {
  const size_t at = std::min(rank, kRanks - 1);
  const double share = std::max(1 - kPrecisionMemory, 1 / (kFirstWeight + ++n_judged_[at]));
  right_[at] += share * ((right ? 1.0 : 0.0) - right_[at]);
}

// Bytes and time are summed apart: a drive that is held back delivers in bursts, and the mean of their rates would be that
// of the bursts.
void PilotJudge::drive_read(uint64_t nbytes, uint64_t elapsed_ns) {
  if (elapsed_ns == 0 || nbytes == 0) return;
  const double weight = std::min(1.0, kLongestNs / static_cast<double>(elapsed_ns));
  read_bytes_ = kDriveMemory * read_bytes_ + weight * static_cast<double>(nbytes);
  read_ns_ = kDriveMemory * read_ns_ + weight * static_cast<double>(elapsed_ns);
}

void PilotJudge::idled(uint64_t elapsed_ns) {
  idle_ns_ = remembered(idle_ns_, static_cast<double>(elapsed_ns), kIdleMemory);
}

// A read that ends while the drive would be idle costs nothing but its slot. What goes on longer delays the next layer's
// demand when the guess is wrong, and was hidden only in part when it is right.
bool PilotJudge::pays(size_t rank, uint64_t nbytes) const {
  const double p = precision(rank);
  if (p < kLeastPrecision) return false;
  if (!knows_time()) return true;
  const double read_ns = static_cast<double>(nbytes) / bytes_per_ns();
  const double hidden_ns = std::clamp(left_ns_, 0.0, read_ns);
  return p * hidden_ns > (1 - p) * (read_ns - hidden_ns);
}

void PilotJudge::spend(uint64_t nbytes) {
  if (knows_time()) left_ns_ -= static_cast<double>(nbytes) / bytes_per_ns();
}

uint64_t PilotJudge::most_bytes() const {
  const double nbytes = knows_time() ? std::clamp(bytes_per_ns() * idle_ns_, kLeastBytes, kMostBytes) : kFirstBytes;
  return static_cast<uint64_t>(nbytes);
}

bool PilotJudge::is_worth_guessing() { return n_in_vain_ < kInVain || ++n_left_out_ % kNowAndThen == 0; }

}  // namespace guanaco
