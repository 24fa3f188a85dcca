#include "result_notices.h"

namespace guanaco {

void ResultNotices::sent() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++n_sent_;
  }
  changed_.notify_all();
}

uint64_t ResultNotices::count() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return n_sent_;
}

bool ResultNotices::wait_past(uint64_t before, std::chrono::steady_clock::time_point until) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, until, [&] { return n_sent_ != before; });
}

}  // namespace guanaco
