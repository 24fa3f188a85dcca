// The policies as they are defined, with nothing kept that could be computed: what the real ones are compared with.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "policy.h"

class PlainPolicy final : public guanaco::Policy {
 public:
  PlainPolicy(std::string name, guanaco::PolicyShape shape);

  void selected(const guanaco::Selection& selection) override;
  void placed(uint32_t group, int32_t expert, uint32_t slot, bool transient) override;
  void emptied(uint32_t size_class, uint32_t slot) override;
  int32_t victim(uint32_t size_class, const uint32_t* pins) override;
  double worth(uint32_t group, int32_t expert) const override;

 private:
  using Expert = std::pair<uint32_t, int32_t>;  // group, expert
  using Weights = std::map<int64_t, double>;    // past token ->
  // The greatest goes first; of a tier that leaves before the others, if the policy has tiers.
  double value(const Expert& expert, const Weights& weights) const;
  bool leaves_last(const Expert& expert) const;
  double ring_distance(uint32_t group) const;
  Weights weigh() const;
  double votes(const Expert& expert, const Weights& weights) const;
  void resemble(const std::vector<int32_t>& used, size_t n_transient);
  void warm_up(uint32_t group, const std::vector<int32_t>& used);
  void end_warm_up();

  const std::string name_;
  guanaco::PolicyShape shape_;
  std::map<std::pair<uint32_t, uint32_t>, Expert> slots_;  // (class, slot)
  std::map<Expert, uint64_t> stamps_, counts_;
  std::map<Expert, double> fast_, slow_, heat_;
  std::map<Expert, bool> pinned_;
  std::vector<uint64_t> budgets_, n_pinned_;
  uint64_t clock_ = 0, selection_began_ = 0, n_calls_ = 0;
  uint32_t group_ = 0;
  int64_t token_ = -1;
  std::vector<std::vector<std::vector<int32_t>>> history_;  // [token][group] -> experts
  Weights likeness_;
};
