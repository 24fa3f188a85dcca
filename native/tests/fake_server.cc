#include "fake_server.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Names, arguments and results are the engine's: they decide what the functions are called in a library.
struct server_task_result {
  int id = 0;
  virtual ~server_task_result() = default;
};

class FAKE_VISIBLE server_response {
 public:
  std::unique_ptr<server_task_result> recv_with_timeout(const std::unordered_set<int>& ids, int timeout);
  void send(std::unique_ptr<server_task_result>&& result);
  void broadcast(std::unique_ptr<server_task_result>&& result) { send(std::move(result)); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<server_task_result>> results_;
};

// Each result of anybody starts the wait anew, as in the engine.
std::unique_ptr<server_task_result> server_response::recv_with_timeout(const std::unordered_set<int>& ids, int timeout) {
  for (;;) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (auto at = results_.begin(); at != results_.end(); ++at) {
      if (ids.count((*at)->id) == 0) continue;
      std::unique_ptr<server_task_result> found = std::move(*at);
      results_.erase(at);
      return found;
    }
    if (changed_.wait_for(lock, std::chrono::seconds(timeout)) == std::cv_status::timeout) return nullptr;
  }
}

void server_response::send(std::unique_ptr<server_task_result>&& result) {
  const std::lock_guard<std::mutex> lock(mutex_);
  results_.push_back(std::move(result));
  changed_.notify_all();
}

struct common_speculative_draft_params {
  bool drafting = false;
  int n_max = 3;
};

struct common_speculative {
  int n_drafts = 0, n_left_marked = 0;
  common_speculative_draft_params params;
};

// Takes the mark back, as the engine does.
FAKE_VISIBLE void common_speculative_draft(common_speculative* drafter) {
  ++drafter->n_drafts;
  drafter->params.drafting = false;
}
FAKE_VISIBLE common_speculative_draft_params& common_speculative_get_draft_params(common_speculative* drafter, int) {
  return drafter->params;
}
FAKE_VISIBLE void common_speculative_begin(common_speculative*, int, const std::vector<int>&) {}
FAKE_VISIBLE void common_speculative_accept(common_speculative*, int, uint16_t) {}

namespace fake {

int receive(int timeout_s, int every_ms, int own_ms) {
  server_response responses;
  std::atomic<bool> is_over{false};
  const auto send = [&](int id) {
    auto result = std::make_unique<server_task_result>();
    result->id = id;
    responses.send(std::move(result));
  };
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed_ms = [&] {
    return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin).count();
  };
  send(1);  // somebody has got a result before
  std::thread others([&] {
    bool has_sent = false;
    while (!is_over && elapsed_ms() < 4000) {
      std::this_thread::sleep_for(milliseconds(every_ms));
      send(1);
      if (own_ms > 0 && !has_sent && elapsed_ms() >= own_ms) {
        has_sent = true;
        send(2);
      }
    }
  });
  const bool has_found = responses.recv_with_timeout({2}, timeout_s) != nullptr;
  const int took_ms = static_cast<int>(elapsed_ms());
  is_over = true;
  others.join();
  return has_found ? took_ms : -took_ms;
}

int decode_with_drafts(int n_steps, int step_us) {
  common_speculative drafter;
  common_speculative_begin(&drafter, 0, {});
  for (int i = 0; i < n_steps; ++i) {
    common_speculative_get_draft_params(&drafter, 0).drafting = true;
    const int n_before = drafter.n_drafts;
    common_speculative_draft(&drafter);
    const bool has_drafted = drafter.n_drafts > n_before;
    if (drafter.params.drafting) return -1;  // the next in this slot would get a draft of this text
    if (has_drafted) common_speculative_accept(&drafter, 0, 0);
    std::this_thread::sleep_for(microseconds(has_drafted ? 2 * step_us : step_us));
  }
  return drafter.n_drafts;
}

}  // namespace fake
