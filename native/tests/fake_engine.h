// A stand-in for the engine: a shared library with ggml's names, graphs a test can build by hand, and a scheduler that
// walks them as ggml's does.
//
// Owns: the order of callbacks and when the fields of a node are read. Leaves arithmetic out: a product records which
// bytes it was given. It is a library of its own so that names are looked up in it as in the real one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ggml_mirror.h"

#define FAKE_API __attribute__((visibility("default")))

namespace fake {

enum Op : int32_t { kNone = 0, kAdd = 2, kGetRows = 5, kArgsort = 7, kView = 11, kMulMatId = 23 };

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

// Faults that ggml_* functions can be told to have, each in one field.
enum class Fault {
  kNone, kType, kShape, kStride, kOpName, kSources, kView, kData, kName, kBuffer, kGraphNodes, kTooSmall, kTooLarge
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
// Runs a graph as the engine's own code does: by a call through the linkage table.
FAKE_API int fake_engine_decode(guanaco::Scheduler* scheduler, guanaco::Graph* graph);

FAKE_API void ggml_backend_sched_set_eval_callback(guanaco::Scheduler*, guanaco::EvalCallback, void*);
FAKE_API int ggml_backend_sched_graph_compute_async(guanaco::Scheduler*, guanaco::Graph*);

}  // extern "C"
