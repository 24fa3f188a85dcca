// One per process: the plan in force and everything made from it, from the first mapping to the end.
//
// Owns: the lifetime and the lock. The interposed functions in preload.cc are its only callers.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "drafts.h"
#include "engine_api.h"
#include "file_watch.h"
#include "io.h"
#include "mapping.h"
#include "pagecache.h"
#include "plan.h"
#include "replay.h"
#include "seam.h"
#include "stats.h"
#include "store.h"
#include "warm_start.h"

namespace guanaco {

class Runtime {
 public:
  // A plan that cannot be read ends the process with a clear line.
  static Runtime* start(const char* plan_path);
  ~Runtime();

  int planned_file(int fd) const { return mappings_.planned_file(fd); }
  // A planned file was mapped whole at `base`. False: the load cannot go on, the reason is in the stats.
  bool mapped(int file, char* base, size_t nbytes);
  void fail_load(const char* reason) { stats_.fail_load(reason); }
  void unmapped(const void* address, size_t nbytes) { mappings_.unmapped(static_cast<const char*>(address), nbytes); }
  // A planned file was mapped by a process that streams nothing.
  void noted(int file, char* base, size_t nbytes) { mappings_.note(file, base, nbytes); }
  bool covers(const void* address) const { return mappings_.contains(address); }
  bool manages() const { return plan_.manage; }
  Drafts& drafts() { return drafts_; }
  void drafts_accepted(size_t n_right);

  void remember_callback(Scheduler* scheduler, UserCallback callback);
  int compute(Scheduler* scheduler, Graph* graph, const void* caller, const void* own_compute);
  // The engine's setter, resolved from the library of `caller`; null when the engine is not usable.
  decltype(EngineApi::set_eval_callback) engine_setter(const void* caller, const void* own_compute);

 private:
  explicit Runtime(LoadPlan plan);
  bool prepare();
  bool load_engine(const void* caller, const void* own_compute);
  int compute_graph(Scheduler* scheduler, Graph* graph, const void* caller, const void* own_compute);
  // Once, after the first graph: reads likely experts on a thread of its own, from when the parent says so to the first
  // request.
  void start_warm_start();
  void warm_start_loop();
  // After a graph that read experts: are the files behind it still the planned ones?
  bool still_right();

  const LoadPlan plan_;
  Stats stats_;
  Mappings mappings_;
  EngineApi api_;
  Replay replay_;
  OpenFiles files_;
  FileWatch watch_{plan_, files_};
  SelectedIo io_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<PageCacheStore> pagecache_;
  std::unique_ptr<Seam> seam_;
  Drafts drafts_{plan_.draft_always, &stats_};
  WarmStart warm_start_;
  bool is_warm_started_ = false;
  uint64_t checked_bytes_ = 0;  // read, and whole, when the files were last found unchanged
  std::mutex mutex_;  // one graph at a time: contexts of a process share the store
  std::unordered_map<Scheduler*, UserCallback> callbacks_;
  enum class Engine { kUnknown, kGood, kBad } engine_ = Engine::kUnknown;
  bool was_prepared_ = false, prepared_ = false;  // tried; with success
  std::atomic<bool> is_ending_{false};
  std::thread warm_start_thread_;
};

}  // namespace guanaco
