#include "use_rates.h"

#include <algorithm>

namespace guanaco {

namespace {

constexpr double kFastKeep = 0.5, kFastGain = 0.5;
constexpr double kSlowKeep = 0.97, kSlowGain = 0.03;
// Below it 0: it could not change a sum with 1e-5 anyway, and denormal numbers are slow.
constexpr double kNothing = 1e-30;

void decay(double* rates, size_t n, double keep) {
  for (size_t i = 0; i < n; ++i) {
    const double rate = keep * rates[i];
    rates[i] = rate < kNothing ? 0.0 : rate;
  }
}

}  // namespace

UseRates::UseRates(const PolicyShape& shape) {
  uint32_t n_keys = 0;
  for (const uint32_t n_expert : shape.n_expert) {
    first_key_.push_back(n_keys);
    n_keys += n_expert;
  }
  first_key_.push_back(n_keys);
  fast_.assign(n_keys, 0.0);
  slow_.assign(n_keys, 0.0);
}

void UseRates::prior(uint32_t group, const double* use) {
  std::copy(use, use + (first_key_[group + 1] - first_key_[group]), slow_.begin() + first_key_[group]);
}

void UseRates::selected(const Selection& selection) {
  const BatchRows& rows = selection.rows;
  if (rows.n == 0) {
    used(selection.group, selection.experts + selection.n_transient, selection.n - selection.n_transient);
  }
  for (size_t i = 0; i < rows.n; ++i) used(selection.group, rows.row(i), rows.n_used);
}

void UseRates::used(uint32_t group, const int32_t* experts, size_t n_used) {
  const uint32_t first = first_key_[group];
  const size_t n = first_key_[group + 1] - first;
  decay(fast_.data() + first, n, kFastKeep);
  decay(slow_.data() + first, n, kSlowKeep);
  for (size_t i = 0; i < n_used; ++i) {
    const size_t key = first + static_cast<size_t>(experts[i]);
    fast_[key] += kFastGain;
    slow_[key] += kSlowGain;
  }
}

}  // namespace guanaco
