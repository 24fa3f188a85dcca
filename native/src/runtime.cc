#include "runtime.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <system_error>
#include <thread>

#include "log.h"

namespace guanaco {

namespace {

constexpr auto kWarmStartPoll = std::chrono::milliseconds(20);  // until the parent says so
constexpr auto kWarmStartStep = std::chrono::milliseconds(1);

}  // namespace

Runtime* Runtime::start(const char* plan_path) {
  LoadPlan plan;
  std::string error;
  if (!read_plan(plan_path, &plan, &error)) {
    GUANACO_LOG("error: the load plan cannot be used: %s", error.c_str());
    _exit(78);
  }
  return new Runtime(std::move(plan));  // lives as long as the process: hooks may run during exit
}

Runtime::Runtime(LoadPlan plan)
    : plan_(std::move(plan)), stats_(plan_.stats_path), mappings_(plan_, &stats_), warm_start_(plan_, &stats_) {
  for (const DenseRange& range : plan_.dense) stats_->dense_bytes_total += range.nbytes;
  std::string error;
  if (plan_.replay_path.empty()) return;
  if (!replay_.open(plan_.replay_path, &error) || !replay_.fits(plan_.groups, &error)) stats_.fail_load(error);
}

Runtime::~Runtime() {
  is_ending_ = true;
  if (warm_start_thread_.joinable()) warm_start_thread_.join();
}

bool Runtime::prepare() {
  if (was_prepared_) return prepared_;
  was_prepared_ = true;  // once: what a failed try left is in use
  std::string error;
  if (!open_files(plan_, &files_, &error) || !select_io(plan_, files_, &io_, &error)) {
    stats_.fail_load(error);
    return false;
  }
  stats_->io_mode = static_cast<uint64_t>(io_.mode);
  if (io_.mode != IoMode::kPageCache) {
    store_ = std::make_unique<Store>(plan_, files_, io_.backend.get(), &stats_);
    if (!store_->allocate(&error)) {
      stats_.fail_load(error);
      return false;
    }
  }
  prepared_ = true;
  return true;
}

bool Runtime::mapped(int file, char* base, size_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  stats_->state = static_cast<uint64_t>(LoadState::kLoadingDense);
  if (!prepare()) {
    stats_->state = static_cast<uint64_t>(LoadState::kFailed);
    return false;
  }
  // Reads for dense weights share the back end with those of experts, which an earlier model may have left.
  if (store_ != nullptr) store_->finish_reads();
  std::string error;
  if (!mappings_.adopt(file, base, nbytes, files_, io_.backend.get(), &error)) {
    stats_.fail_load(error);
    return false;
  }
  // The header was read through the page cache; nobody needs it again.
  posix_fadvise(files_.fds[static_cast<size_t>(file)], 0, 0, POSIX_FADV_DONTNEED);
  stats_->state = static_cast<uint64_t>(LoadState::kReady);
  return true;
}

void Runtime::remember_callback(Scheduler* scheduler, UserCallback callback) {
  std::lock_guard<std::mutex> lock(mutex_);
  callbacks_[scheduler] = callback;
}

bool Runtime::load_engine(const void* caller, const void* own_compute) {
  if (engine_ != Engine::kUnknown) return engine_ == Engine::kGood;
  std::string error;
  if (!api_.load(caller, own_compute, plan_.engine, &error)) {
    engine_ = Engine::kBad;
    stats_.fail_load(error);
    return false;
  }
  engine_ = Engine::kGood;
  seam_ = std::make_unique<Seam>(plan_, api_, mappings_, &stats_, &replay_);
  return true;
}

decltype(EngineApi::set_eval_callback) Runtime::engine_setter(const void* caller, const void* own_compute) {
  std::lock_guard<std::mutex> lock(mutex_);
  return load_engine(caller, own_compute) ? api_.set_eval_callback : nullptr;
}

int Runtime::compute(Scheduler* scheduler, Graph* graph, const void* caller, const void* own_compute) {
  std::lock_guard<std::mutex> lock(mutex_);
  try {
    return compute_graph(scheduler, graph, caller, own_compute);
  } catch (const std::exception& problem) {
    stats_.set_error(problem.what());
  } catch (...) {
    stats_.set_error("a callback of the program failed");
  }
  return kStatusFailed;
}

int Runtime::compute_graph(Scheduler* scheduler, Graph* graph, const void* caller, const void* own_compute) {
  if (!load_engine(caller, own_compute)) return kStatusFailed;
  if (prepared_ && io_.mode == IoMode::kPageCache && pagecache_ == nullptr) {
    pagecache_ = std::make_unique<PageCacheStore>(plan_, files_, mappings_, &stats_);
  }
  seam_->use_store(store_.get());
  seam_->use_pagecache(pagecache_.get());
  seam_->use_drafts(&drafts_.rows());
  const auto user = callbacks_.find(scheduler);
  const int status = seam_->compute(scheduler, graph, user == callbacks_.end() ? UserCallback{} : user->second);
  if (plan_.is_batch(seam_->n_tokens())) drafts_.prompt_read();
  start_warm_start();
  return still_right() ? status : kStatusFailed;
}

void Runtime::drafts_accepted(size_t n_right) {
  std::lock_guard<std::mutex> lock(mutex_);
  drafts_.accepted(n_right);
  if (seam_ != nullptr) seam_->drafts_accepted(n_right);
}

void Runtime::start_warm_start() {
  if (is_warm_started_ || store_ == nullptr || !warm_start_.has_any()) return;
  is_warm_started_ = true;
  try {
    warm_start_thread_ = std::thread([this] { warm_start_loop(); });
  } catch (const std::system_error&) {
    stats_->preload_ended = 1;  // a process that may not have more threads starts cold
  }
}

void Runtime::warm_start_loop() {
  while (stats_->warm_start == 0 && !is_ending_) std::this_thread::sleep_for(kWarmStartPoll);
  const uint64_t graphs_before = stats_->graphs;
  bool goes_on = true;
  while (goes_on && !is_ending_) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      // A request reads what it needs itself.
      goes_on = stats_->graphs == graphs_before && warm_start_.step(store_.get());
    }
    if (goes_on) std::this_thread::sleep_for(kWarmStartStep);
  }
  stats_->preload_ended = 1;
}

bool Runtime::still_right() {
  const uint64_t bytes_read = stats_->bytes_read;
  if (bytes_read == checked_bytes_) return true;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::string error, warning;
  const bool good = watch_.check(static_cast<uint64_t>(std::chrono::nanoseconds(now).count()), &error, &warning);
  if (!warning.empty()) GUANACO_LOG("warning: %s", warning.c_str());
  if (!good) {
    add(stats_->read_errors, 1);
    stats_.set_error(error);
  }
  // What was read of a changed file stays in the slots, and what is still being read is not known yet.
  if (good && (store_ == nullptr || store_->pending_bytes() == 0)) checked_bytes_ = bytes_read;
  return good;
}

}  // namespace guanaco
