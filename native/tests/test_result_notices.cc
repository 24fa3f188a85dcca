// Waits for results: they end at the right one, or in time.
#include <atomic>
#include <thread>

#include "check.h"
#include "result_notices.h"

using guanaco::ResultNotices;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

milliseconds since(steady_clock::time_point begin) {
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin);
}

}  // namespace

TEST(what_is_there_is_found_at_once) {
  ResultNotices notices;
  CHECK(!notices.is_used());
  CHECK_EQ(notices.wait(milliseconds(60000), [] { return 7; }), 7);
}

TEST(a_wait_ends_with_the_result_it_is_for) {
  ResultNotices notices;
  std::atomic<int> sent{0};
  std::thread sender([&] {
    for (int i = 1; i <= 50; ++i) {
      sent = i;
      notices.sent();
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  const int found = notices.wait(milliseconds(60000), [&] { return sent >= 20 ? sent.load() : 0; });
  sender.join();
  CHECK(found >= 20);
  CHECK(notices.is_used());
}

TEST(results_of_others_do_not_make_it_longer) {
  ResultNotices notices;
  std::atomic<bool> is_over{false};
  std::thread others([&] {
    while (!is_over) {
      notices.sent();
      std::this_thread::sleep_for(milliseconds(5));
    }
  });
  const auto begin = steady_clock::now();
  CHECK_EQ(notices.wait(milliseconds(200), [] { return 0; }), 0);
  CHECK(since(begin) >= milliseconds(200));
  CHECK(since(begin) < milliseconds(20000));  // it ends at all
  is_over = true;
  others.join();
}
