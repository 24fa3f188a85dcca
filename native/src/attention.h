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
  // The weight of the tokens that used an expert after ones like the current token, as of the last selection.
  // `key`: the expert, numbered through all groups.
  double votes(uint32_t group, uint32_t key) const;
  // The part of it that comes from the tokens that weigh most, but for rounding: sooner known, hardly ever more.
  double main_votes(uint32_t group, uint32_t key) const;

 private:
  void remember(const int32_t* experts, size_t n_used, uint32_t age);
  void compare(const int32_t* experts, size_t n_used, double k);
  static constexpr uint32_t kTokens = 256;  // a power of two: tokens lie in a ring
  static constexpr uint32_t kWords = kTokens / 64;
  static constexpr uint32_t kKept = 16;
  using Tokens = std::array<uint64_t, kWords>;  // bit per place in the ring

  void start_token();
  void weigh() const;
  uint32_t place(uint32_t age) const { return (now_ - age) % kTokens; }

  std::vector<uint32_t> first_key_;  // [group]
  std::vector<uint32_t> top_k_;      // [group]; 0 until it is known
  std::vector<Tokens> users_;        // [key]: the tokens that used the expert
  uint32_t n_past_ = 0;              // past tokens remembered
  uint32_t now_ = 0;                 // the current token's place in the ring
  uint32_t n_started_ = 1;           // tokens that started with the current one: those of a prompt batch
  bool any_token_ = false;
  uint32_t group_ = 0;  // last selected
  // By age, 1 the token before the current one. Ages do not move when a token starts: the current token and the one
  // it is likened to get older together.
  std::array<double, kTokens> likeness_{};
  // Drawn from the likeness when first asked for; [kTokens] stays 0.
  mutable bool is_weighed_ = true;
  mutable std::array<double, kTokens + 1> weights_{};
  mutable std::array<Tokens, 2> heavy_{};  // the tokens that weigh most; the tokens after those
};

}  // namespace guanaco
