// One process's runtime as the preloaded library would start it, over the rig's model.
#pragma once

#include <sys/mman.h>

#include <memory>
#include <string>

#include "engine_rig.h"
#include "runtime.h"

inline const void* in_the_engine() { return reinterpret_cast<const void*>(&fake_engine_decode); }

// The rig's plan written to disk and started as the preloaded library would.
class Process {
 public:
  explicit Process(EngineRig* rig) : rig_(rig) {
    Bed& bed = rig->bed;
    bed.plan.stats_path = bed.dir.write("stats", std::string(sizeof(guanaco::StatsBlock), '\0'));
    if (bed.plan.dense.empty()) bed.dense(0, 0, 4000);
    stats = std::make_unique<guanaco::Stats>(bed.plan.stats_path);
    std::string error;
    REQUIRE(bed.open_real(&error));
    runtime.reset(guanaco::Runtime::start(bed.dir.write("plan", bed.text()).c_str()));
  }
  ~Process() {
    if (base != nullptr) guanaco::raw_munmap(base, nbytes());
  }

  uint64_t nbytes() const { return rig_->bed.plan.files[0].size_bytes; }
  int fd() const { return rig_->bed.files.fds[0]; }
  void map() {
    void* at = guanaco::raw_mmap(nullptr, nbytes(), PROT_READ, MAP_SHARED, fd(), 0);
    REQUIRE(at != MAP_FAILED);
    base = static_cast<char*>(at);
  }
  bool load() {
    map();
    const bool good = runtime->mapped(runtime->planned_file(fd()), base, nbytes());
    rig_->make_weights(base);
    return good;
  }
  int compute(guanaco::Scheduler* scheduler, TestGraph* graph) {
    return runtime->compute(scheduler, &graph->graph, in_the_engine(), nullptr);
  }
  std::string error() const { return std::string((*stats)->error, (*stats)->error_length); }
  guanaco::LoadState state() const { return static_cast<guanaco::LoadState>((*stats)->state.load()); }

  std::unique_ptr<guanaco::Stats> stats;
  std::unique_ptr<guanaco::Runtime> runtime;
  char* base = nullptr;

 private:
  EngineRig* const rig_;
};

// A model of one layer, loaded, and a graph of it.
struct LoadedLayer {
  EngineRig rig{1, 4};
  Process process{&rig};
  guanaco::Scheduler scheduler;
  TestGraph graph;
  MoeLayer* layer = nullptr;

  LoadedLayer() {
    REQUIRE(process.load());
    layer = &rig.add_layer(&graph, 0, {{1, 2}});
  }
};
