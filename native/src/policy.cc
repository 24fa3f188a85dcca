// The registry of policies.
#include "policy.h"

namespace guanaco {

namespace {

constexpr struct {
  const char* name;
  std::unique_ptr<Policy> (*make)(const PolicyShape&);
} kPolicies[] = {
    {"lru", make_lru}, {"lfu", make_lfu}, {"cycle", make_cycle}, {"recall", make_recall}, {"herd", make_herd}};

}  // namespace

bool is_policy(const std::string& name) {
  for (const auto& entry : kPolicies) {
    if (name == entry.name) return true;
  }
  return false;
}

std::unique_ptr<Policy> make_policy(const std::string& name, const PolicyShape& shape, std::string* error) {
  std::string known;
  for (const auto& entry : kPolicies) {
    if (name == entry.name) return entry.make(shape);
    known += std::string(known.empty() ? "" : ", ") + entry.name;
  }
  *error = "policy '" + name + "' is not known to this library; it knows " + known;
  return nullptr;
}

}  // namespace guanaco
