#include "use_class.h"

namespace guanaco {

namespace {

constexpr double kKeep = 0.97;
constexpr double kNothing = 1e-30;  // below it 0, or unused experts would end as slow denormal numbers

}  // namespace

UseClass::UseClass(const PolicyShape& shape) {
  for (const uint32_t n_expert : shape.n_expert) rates_.emplace_back(n_expert, 0.0);
}

void UseClass::selected(const Selection& selection) {
  std::vector<double>& rates = rates_[selection.group];
  for (double& rate : rates) {
    rate *= kKeep;
    rate = rate < kNothing ? 0.0 : rate;
  }
  for (size_t i = selection.n_transient; i < selection.n; ++i) {
    rates[static_cast<size_t>(selection.experts[i])] += 1.0 - kKeep;
  }
}

}  // namespace guanaco
