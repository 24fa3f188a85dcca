// Attention over the recent past: which past tokens were routed like the current one, and what they used next.
//
// Owns the routing of the last 256 tokens, the current one among them, and the votes drawn from it. Sees selections
// only: no hidden state, no weights. Leaves what a vote is worth to the policy. The values are those of the plain
// definition in the documentation, summed in the same order.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "policy.h"

namespace guanaco {

class Attention {
 public:
  explicit Attention(const PolicyShape& shape);

  void selected(const Selection& selection, bool token_starts);
  // The weight of the tokens that used the expert after ones like the current token, as of the last selection.
  // `key`: the expert, numbered through all groups.
  double votes(uint32_t group, uint32_t key) const;

 private:
  static constexpr uint32_t kTokens = 256;  // a power of two: tokens lie in a ring
  static constexpr uint32_t kWords = kTokens / 64;
  static constexpr uint32_t kKept = 16;
  using Weights = std::array<double, kTokens>;
  using Users = std::array<uint64_t, kWords>;  // bit per token

  void start_token();
  void weigh() const;

  std::vector<uint32_t> first_key_;  // [group]
  std::vector<uint32_t> top_k_;      // [group]; 0 until it is known
  std::vector<Users> users_;         // [key]: the tokens that used the expert
  uint32_t n_past_ = 0;              // past tokens remembered
  uint32_t now_ = 0;                 // the current token's place in the ring
  bool any_token_ = false;
  uint32_t group_ = 0;               // last selected
  Weights likeness_{};               // of past tokens to the current one; 0 elsewhere
  // Drawn from the likeness when first asked for.
  mutable bool is_weighed_ = true;
  mutable Weights weights_{};        // of past tokens, for layers still to come; 0 elsewhere
  mutable Weights weights_after_{};  // of the tokens after those, for layers served already
};

}  // namespace guanaco
