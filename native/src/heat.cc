#include "heat.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace guanaco {

namespace {

constexpr size_t kHeadWords = 4;

template <typename Number>
void put(Number* place, Number value) {
  __atomic_store_n(place, value, __ATOMIC_RELAXED);
}

}  // namespace

uint64_t HeatMap::nbytes(const LoadPlan& plan) {
  uint64_t n_experts = 0;
  for (const ExpertGroup& group : plan.groups) n_experts += group.n_expert;
  return kHeadWords * sizeof(uint64_t) + plan.groups.size() * 2 * sizeof(uint32_t) +
         n_experts * (sizeof(uint32_t) + sizeof(uint16_t));
}

HeatMap::HeatMap(const LoadPlan& plan) : nbytes_(nbytes(plan)) {
  const int fd = plan.heat_path.empty() ? -1 : open(plan.heat_path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat info {};
  if (fd >= 0 && fstat(fd, &info) == 0 && static_cast<uint64_t>(info.st_size) >= nbytes_) {
    // The raw call: this library interposes mmap.
    const long at = syscall(SYS_mmap, nullptr, nbytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
    if (at != -1) base_ = reinterpret_cast<char*>(at);
  }
  if (fd >= 0) close(fd);
  if (base_ == nullptr) return;
  uint32_t* shape = reinterpret_cast<uint32_t*>(base_ + kHeadWords * sizeof(uint64_t));
  first_.push_back(0);
  for (const ExpertGroup& group : plan.groups) {
    *shape++ = group.layer;
    *shape++ = group.n_expert;
    first_.push_back(first_.back() + group.n_expert);
  }
  uses_ = shape;
  heat_ = reinterpret_cast<uint16_t*>(uses_ + first_.back());
  uint64_t* head = reinterpret_cast<uint64_t*>(base_);
  head[1] = kHeatVersion;
  head[2] = plan.groups.size();
  head[3] = first_.back();
  __atomic_store_n(head, kHeatMagic, __ATOMIC_RELEASE);
}

HeatMap::~HeatMap() {
  if (base_ != nullptr) syscall(SYS_munmap, base_, nbytes_);
}

void HeatMap::served(const Cache& cache, const Selection& selection) {
  if (base_ == nullptr) return;
  const size_t first = first_[selection.group], n = first_[selection.group + 1] - first;
  for (size_t i = selection.n_transient; i < selection.n; ++i) {
    uint32_t* uses = uses_ + first + selection.experts[i];
    if (*uses < UINT32_MAX) put(uses, *uses + 1);
  }
  for (size_t e = 0; e < n; ++e) {
    const int32_t expert = static_cast<int32_t>(e);
    const double rate = std::min(cache.use_rate(selection.group, expert), 1.0);
    const auto heat = static_cast<uint16_t>(rate * kMostHeat + 0.5);
    const bool resident = cache.slot_of(selection.group, expert) >= 0;
    put(heat_ + first + e, static_cast<uint16_t>(heat | (resident ? kHeatResident : 0)));
  }
}

}  // namespace guanaco
