#include "attention.h"

#include <algorithm>
#include <cmath>

namespace guanaco {

namespace {

constexpr double kCarried = 0.6;    // of a likeness, to the token after
constexpr double kFading = 0.9;     // of a likeness, a layer
constexpr double kNothing = 1e-30;  // below it a likeness is none: denormal numbers are slow
constexpr double kSharpness = 1.3;
constexpr double kSmear = 0.4;  // of a weight, to the token after

double or_none(double likeness) { return likeness < kNothing ? 0.0 : likeness; }

template <typename Visit>
void each_bit(uint64_t bits, uint32_t first, const Visit& visit) {
  for (; bits != 0; bits &= bits - 1) visit(first + static_cast<uint32_t>(__builtin_ctzll(bits)));
}

}  // namespace

Attention::Attention(const PolicyShape& shape) : top_k_(shape.top_k) {
  uint32_t n_keys = 0;
  for (const uint32_t n_expert : shape.n_expert) {
    first_key_.push_back(n_keys);
    n_keys += n_expert;
  }
  users_.assign(n_keys, Users{});
}

void Attention::selected(const Selection& selection, bool token_starts) {
  if (token_starts) start_token();
  group_ = selection.group;
  is_weighed_ = false;
  const uint32_t n_used = static_cast<uint32_t>(selection.n - selection.n_transient);
  if (top_k_[group_] == 0 && selection.n_transient == 0) top_k_[group_] = n_used;
  const double k = top_k_[group_] != 0 ? top_k_[group_] : std::max(n_used, 1u);
  std::array<uint32_t, kTokens> shared{};  // experts in common with each past token
  for (size_t i = selection.n_transient; i < selection.n; ++i) {
    const Users& users = users_[first_key_[group_] + static_cast<uint32_t>(selection.experts[i])];
    for (uint32_t word = 0; word < kWords; ++word) {
      each_bit(users[word], word * 64, [&](uint32_t token) { ++shared[token]; });
    }
  }
  for (uint32_t token = 0; token < kTokens; ++token) {
    likeness_[token] = or_none(kFading * likeness_[token] + static_cast<double>(shared[token]) / k);
  }
  for (size_t i = selection.n_transient; i < selection.n; ++i) {
    Users& users = users_[first_key_[group_] + static_cast<uint32_t>(selection.experts[i])];
    users[now_ / 64] |= uint64_t{1} << now_ % 64;
  }
}

void Attention::start_token() {
  if (!any_token_) {
    any_token_ = true;
    return;
  }
  now_ = (now_ + 1) % kTokens;
  n_past_ = std::min(n_past_ + 1, kTokens - 1);
  // Each token takes over from the one before it. The place of the new token gets the likeness of the token that
  // just ended to itself, which is kept at 0.
  Weights carried;
  for (uint32_t token = 0; token < kTokens; ++token) {
    carried[(token + 1) % kTokens] = or_none(kCarried * likeness_[token]);
  }
  likeness_ = carried;
  const uint64_t others = ~(uint64_t{1} << now_ % 64);
  for (Users& users : users_) users[now_ / 64] &= others;
}

void Attention::weigh() const {
  is_weighed_ = true;
  weights_.fill(0.0);
  weights_after_.fill(0.0);
  if (n_past_ == 0) return;
  // The most alike, by age; among equals the younger. Ages rather than places, because they sort.
  struct Past {
    double likeness;
    uint32_t age;
  };
  std::array<Past, kKept> kept;
  size_t n_kept = 0;
  for (uint32_t age = 1; age <= n_past_; ++age) {
    const double likeness = likeness_[(now_ - age) % kTokens];
    if (n_kept == kKept && likeness <= kept[kKept - 1].likeness) continue;
    size_t at = n_kept < kKept ? n_kept++ : kKept - 1;
    for (; at > 0 && kept[at - 1].likeness < likeness; --at) kept[at] = kept[at - 1];
    kept[at] = {likeness, age};
  }
  const double most = kept[0].likeness;
  std::sort(kept.begin(), kept.begin() + static_cast<long>(n_kept),
            [](const Past& a, const Past& b) { return a.age > b.age; });
  double total = 0.0;
  for (size_t i = 0; i < n_kept; ++i) {
    kept[i].likeness = std::exp(kSharpness * (kept[i].likeness - most));
    total += kept[i].likeness;
  }
  double weight = 0.0, total_weight = 0.0;
  size_t next = 0;
  for (uint32_t age = kept[0].age; age > 0; --age) {
    const bool is_kept = next < n_kept && kept[next].age == age;
    weight = (is_kept ? kept[next++].likeness / total : 0.0) + kSmear * weight;
    total_weight += weight;
    weights_[(now_ - age) % kTokens] = weight;
  }
  for (uint32_t age = kept[0].age; age > 0; --age) {
    const double share = weights_[(now_ - age) % kTokens] / total_weight;
    weights_[(now_ - age) % kTokens] = share;
    weights_after_[(now_ - age + 1) % kTokens] = share;
  }
}

double Attention::votes(uint32_t group, uint32_t key) const {
  if (!is_weighed_) weigh();
  const Weights& weights = group > group_ ? weights_ : weights_after_;
  const Users& users = users_[key];
  double sum = 0.0;
  const auto add = [&](uint32_t token) { sum += weights[token]; };
  // From the oldest token, which lies behind the current one in the ring.
  const uint32_t oldest = (now_ + 1) % kTokens;
  const uint64_t from_oldest = ~uint64_t{0} << oldest % 64;
  for (uint32_t i = 0; i <= kWords; ++i) {
    const uint32_t word = (oldest / 64 + i) % kWords;
    uint64_t bits = users[word];
    if (i == 0) bits &= from_oldest;
    if (i == kWords) bits &= ~from_oldest;
    each_bit(bits, word * 64, add);
  }
  return sum;
}

}  // namespace guanaco
