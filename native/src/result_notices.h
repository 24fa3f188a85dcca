// Waits for a request's results that end when their time is over.
//
// The engine asks whether a client has left only when such a wait times out, and each result of any request starts its
// waits anew: while others get tokens nobody would be missed, and an answer for nobody goes on to its end.
// Owns: the number of results sent so far. Leaves the results to the engine.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace guanaco {

class ResultNotices {
 public:
  void sent();
  // `look` is asked at once and after each result, until it finds one or `timeout` has passed; the last it found.
  template <typename Look>
  auto wait(std::chrono::milliseconds timeout, const Look& look) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    for (;;) {
      const uint64_t before = count();
      auto found = look();
      if (found || std::chrono::steady_clock::now() >= until || !wait_past(before, until)) return found;
    }
  }
  // Before the first there is nothing to wait for here.
  bool is_used() { return count() > 0; }

 private:
  uint64_t count();
  bool wait_past(uint64_t before, std::chrono::steady_clock::time_point until);

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t n_sent_ = 0;
};

}  // namespace guanaco
