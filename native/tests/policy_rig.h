// A policy alone, driven as the Cache drives it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "policy.h"

class PolicyRig {
 public:
  PolicyRig(const std::string& name, guanaco::PolicyShape policy_shape) : shape(std::move(policy_shape)) {
    std::string error;
    policy = guanaco::make_policy(name, shape, &error);
    REQUIRE(policy != nullptr);
    for (const uint32_t n_slots : shape.n_slots) pins.emplace_back(n_slots, 0);
  }

  void select(uint32_t group, const std::vector<int32_t>& experts, size_t n_transient = 0) {
    policy->selected({group, experts.data(), experts.size(), n_transient});
  }
  // Selects, and puts expert i into slot `slots[i]`; -1: it is resident.
  void use(uint32_t group, const std::vector<int32_t>& experts, const std::vector<int32_t>& slots,
           size_t n_transient = 0) {
    select(group, experts, n_transient);
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] >= 0) policy->placed(group, experts[i], static_cast<uint32_t>(slots[i]), i < n_transient);
    }
    policy->served(group);
  }
  // Victims one after the other, as if each were then in use.
  std::vector<int32_t> victims(size_t n, uint32_t size_class = 0) const {
    std::vector<uint32_t> held = pins[size_class];
    std::vector<int32_t> result;
    for (size_t i = 0; i < n; ++i) {
      result.push_back(policy->victim(size_class, held.data()));
      if (result.back() >= 0) ++held[static_cast<size_t>(result.back())];
    }
    return result;
  }

  guanaco::PolicyShape shape;
  std::unique_ptr<guanaco::Policy> policy;
  std::vector<std::vector<uint32_t>> pins;  // [class][slot]
};

using Slots = std::vector<int32_t>;
