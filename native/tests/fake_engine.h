// A stand-in for the engine: a shared library with ggml's names, graphs a test can build by hand, and a scheduler that
// walks them as ggml's does.
//
// Owns: the order of callbacks and when the fields of a node are read, and enough arithmetic to tell right from wrong:
// a product records which bytes it was given, and nodes that have data are computed. It is a library of its own so that
// names are looked up in it as in the real one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ggml_mirror.h"

#define FAKE_API __attribute__((visibility("default")))

namespace fake {

enum Op : int32_t {
  kNone = 0, kAdd = 2, kMul = 3, kGetRows = 5, kArgsort = 7, kRmsNorm = 9, kView = 11, kReshape = 12, kCpy = 13,
  kMulMat = 22, kMulMatId = 23
};

// Like the engine's, longer than the mirrored prefix.
struct FullTensor : guanaco::Tensor {
  const std::function<void()>* action = nullptr;  // what computing the node does
  char padding[24] = {};
};

// A tensor's buffer. On a card its bytes are not where `data` points.
struct Buffer {
  bool is_host = true;
  const char* card_bytes = nullptr;
};

// What a product was given when it was computed.
struct ProductResult {
  int64_t n_expert = 0;
  const char* weights = nullptr;
  const char* ids = nullptr;
  std::vector<std::string> slices;  // by row, then by place in the row; "?" for an id out of range
};

// A graph that was computed on a back end of its own, outside a scheduler.
struct OwnRun {
  int n_threads = 0;
  std::vector<int32_t> ops;
  std::vector<ProductResult> products;
};

// Faults that ggml_* functions can be told to have, each in one field; the last two of the processor's back end.
enum class Fault {
  kNone, kType, kShape, kStride, kOpName, kSources, kView, kData, kName, kBuffer, kGraphNodes, kTooSmall, kTooLarge,
  kNoBackend, kCompute
};

}  // namespace fake

namespace guanaco {

struct Graph {
  std::vector<Tensor*> nodes;
  std::vector<size_t> split_begins = {0};
  std::vector<std::function<void()>> split_inputs;  // copies made when a split begins
};

struct Scheduler {
  EvalCallback callback = nullptr;
  void* user_data = nullptr;
  int status = 0;                                // returned instead of computing when not 0
  std::function<void(Tensor*)> before_node;      // told of each node before it is computed
  std::vector<Tensor*> computed;                 // in order
  std::map<const Tensor*, fake::ProductResult> products;
};

}  // namespace guanaco

extern "C" {

FAKE_API void fake_engine_fault(fake::Fault fault);
// What was run since the last call.
FAKE_API void fake_engine_take_runs(std::vector<fake::OwnRun>* runs);
FAKE_API int fake_engine_backends();  // that are not freed
// Runs a graph as the engine's own code does: by a call through the linkage table.
FAKE_API int fake_engine_decode(guanaco::Scheduler* scheduler, guanaco::Graph* graph);

FAKE_API void ggml_backend_sched_set_eval_callback(guanaco::Scheduler*, guanaco::EvalCallback, void*);
FAKE_API int ggml_backend_sched_graph_compute_async(guanaco::Scheduler*, guanaco::Graph*);

}  // extern "C"
