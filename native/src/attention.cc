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
constexpr double kHeavy = 0.02;  // of the greatest weight

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
  users_.assign(n_keys, Tokens{});
}

void Attention::selected(const Selection& selection, bool token_starts) {
  const BatchRows& rows = selection.rows;
  if (token_starts) {
    n_started_ = static_cast<uint32_t>(std::clamp<size_t>(rows.n, 1, kTokens - 1));
    for (uint32_t i = 0; i < n_started_; ++i) start_token();
  }
  group_ = selection.group;
  is_weighed_ = false;
  // The current token is the last row.
  const int32_t* experts = rows.n > 0 ? rows.row(rows.n - 1) : selection.experts + selection.n_transient;
  const size_t n_used = rows.n > 0 ? rows.n_used : selection.n - selection.n_transient;
  if (top_k_[group_] == 0 && (rows.n > 0 || selection.n_transient == 0)) top_k_[group_] = static_cast<uint32_t>(n_used);
  for (size_t age = std::min<size_t>(rows.n, n_started_); age > 1; --age) {
    remember(rows.row(rows.n - age), rows.n_used, static_cast<uint32_t>(age - 1));
  }
  compare(experts, n_used, top_k_[group_] != 0 ? top_k_[group_] : static_cast<double>(std::max<size_t>(n_used, 1)));
  remember(experts, n_used, 0);
}

void Attention::remember(const int32_t* experts, size_t n_used, uint32_t age) {
  for (size_t i = 0; i < n_used; ++i) {
    users_[first_key_[group_] + static_cast<uint32_t>(experts[i])][place(age) / 64] |= uint64_t{1} << place(age) % 64;
  }
}

// How many experts the current token has in common with each past one, over `k`.
void Attention::compare(const int32_t* experts, size_t n_used, double k) {
  std::array<uint32_t, kTokens> shared{};  // [age]
  for (size_t i = 0; i < n_used; ++i) {
    const Tokens& users = users_[first_key_[group_] + static_cast<uint32_t>(experts[i])];
    for (uint32_t word = 0; word < kWords; ++word) {
      each_bit(users[word], word * 64, [&](uint32_t token) { ++shared[(now_ - token) % kTokens]; });
    }
  }
  for (uint32_t age = 1; age < kTokens; ++age) {
    likeness_[age] = or_none(kFading * likeness_[age] + static_cast<double>(shared[age]) / k);
  }
}

void Attention::start_token() {
  if (!any_token_) {
    any_token_ = true;
    return;
  }
  now_ = (now_ + 1) % kTokens;
  n_past_ = std::min(n_past_ + 1, kTokens - 1);
  for (double& likeness : likeness_) likeness = or_none(kCarried * likeness);
  const uint64_t others = ~(uint64_t{1} << now_ % 64);
  for (Tokens& users : users_) users[now_ / 64] &= others;
}

void Attention::weigh() const {
  is_weighed_ = true;
  weights_.fill(0.0);
  heavy_ = {};
  if (n_past_ == 0) return;
  // The most alike; among equals the younger.
  struct Past {
    double likeness;
    uint32_t age;
  };
  std::array<Past, kKept> kept{};
  size_t n_kept = 0;
  for (uint32_t age = 1; age <= n_past_; ++age) {
    const double likeness = likeness_[age];
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
  const uint32_t oldest = kept[0].age;
  for (size_t i = 0; i < n_kept; ++i) weights_[kept[i].age] = kept[i].likeness / total;
  double weight = 0.0, total_weight = 0.0, greatest = 0.0;
  for (uint32_t age = oldest; age > 0; --age) {
    weight = weights_[age] + kSmear * weight;
    weights_[age] = weight;
    total_weight += weight;
    greatest = std::max(greatest, weight);
  }
  for (uint32_t age = 1; age <= oldest; ++age) {
    if (weights_[age] < kHeavy * greatest) continue;
    heavy_[0][place(age) / 64] |= uint64_t{1} << place(age) % 64;
    heavy_[1][place(age - 1) / 64] |= uint64_t{1} << place(age - 1) % 64;
  }
  for (uint32_t age = 1; age <= oldest; ++age) weights_[age] = weights_[age] / total_weight;
}

// A layer still to come: what tokens like this one used there. One served already: what the tokens after those did.
double Attention::votes(uint32_t group, uint32_t key) const {
  if (!is_weighed_) weigh();
  const double* const weights = weights_.data() + (group > group_ ? 0 : 1);
  const Tokens& users = users_[key];
  double sum = 0.0;
  const auto add = [&](uint32_t token) { sum += weights[(now_ - token) % kTokens]; };
  // From the oldest token, which lies behind the current one in the ring.
  const uint32_t oldest = (now_ + 1) % kTokens;
  const uint64_t from_oldest = ~uint64_t{0} << oldest % 64;
  each_bit(users[oldest / 64] & from_oldest, oldest & ~63u, add);
  for (uint32_t i = 1; i < kWords; ++i) {
    const uint32_t word = (oldest / 64 + i) % kWords;
    each_bit(users[word], word * 64, add);
  }
  each_bit(users[oldest / 64] & ~from_oldest, oldest & ~63u, add);
  return sum;
}

double Attention::main_votes(uint32_t group, uint32_t key) const {
  if (!is_weighed_) weigh();
  const uint32_t later = group > group_ ? 0 : 1;
  const double* const weights = weights_.data() + later;
  double sum = 0.0;
  for (uint32_t word = 0; word < kWords; ++word) {
    each_bit(users_[key][word] & heavy_[later][word], word * 64,
             [&](uint32_t token) { sum += weights[(now_ - token) % kTokens]; });
  }
  return sum;
}

}  // namespace guanaco
