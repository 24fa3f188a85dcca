// Whether drafting pays: tokens a second with drafts against without, both measured while decoding.
//
// Owns: what was measured of each way, for each number of sequences. Pure arithmetic on what it is told; reads no clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace guanaco {

class DraftJudge {
 public:
  explicit DraftJudge(bool always) : always_(always) {}

  // A step of decoding begins, in which each of `n_sequences` gets a token or more. True: with drafts.
  bool begin(uint64_t now_ns, size_t n_sequences);
  // So many tokens of a draft were right in this step.
  void accepted(size_t n_tokens) { n_accepted_ += n_tokens; }
  // A prompt was read meanwhile: how long the step took says nothing.
  void interrupted() { begun_ns_ = 0; }

 private:
  struct Way {
    double tokens = 0, ns = 0;  // of late
    void add(double n_tokens, double elapsed_ns);
    double tokens_per_ns() const { return ns > 0 ? tokens / ns : 0; }
    bool is_known() const { return ns > 0; }
  };
  // Of one number of sequences: the more there are, the more each drafted token costs.
  struct Case {
    Way without, with;
    bool drafts = true;
    bool is_look = true;  // this stretch is for measuring
    uint64_t left = 0;    // steps of this stretch
    uint64_t stay = 0;    // steps of the next one that is not
  };
  static constexpr size_t kCases = 8;

  void next_stretch(Case* of) const;

  const bool always_;
  std::array<Case, kCases> cases_{};
  uint64_t begun_ns_ = 0;
  size_t n_sequences_ = 0, n_accepted_ = 0;
  bool drafts_ = true;
};

}  // namespace guanaco
