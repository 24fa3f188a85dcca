// The engine's own functions, found in the library that calls us, and the check of its structures.
//
// Owns: the list of ggml functions the seam relies on. Refuses an engine that lacks one, or whose tensors are laid
// out differently from ggml_mirror.h.
#pragma once

#include <string>

#include "ggml_mirror.h"

namespace guanaco {

struct InitParams {
  size_t mem_size;
  void* mem_buffer;
  bool no_alloc;
};

// What it takes to compute outside the engine's graphs. An engine may lack it.
struct ComputeApi {
  bool complete = false;
  bool shares_threads = false;  // its threads are OpenMP's: any back end on one thread uses the same ones
  void* (*cpu_init)() = nullptr;
  void (*backend_free)(void*) = nullptr;
  void (*set_n_threads)(void*, int) = nullptr;
  int (*graph_compute)(void*, Graph*) = nullptr;
  Context* (*init)(InitParams) = nullptr;
  void (*free)(Context*) = nullptr;
  Graph* (*new_graph)(Context*, size_t, bool) = nullptr;
  size_t (*graph_overhead)(size_t, bool) = nullptr;
  void (*graph_add_node)(Graph*, Tensor*) = nullptr;
  void (*graph_clear)(Graph*) = nullptr;
  size_t (*nbytes)(const Tensor*) = nullptr;
};

struct EngineApi {
  void (*set_eval_callback)(Scheduler*, EvalCallback, void*) = nullptr;
  int (*graph_compute_async)(Scheduler*, Graph*) = nullptr;
  int (*graph_n_nodes)(Graph*) = nullptr;
  Tensor* (*graph_node)(Graph*, int) = nullptr;
  const char* (*op_name)(int32_t) = nullptr;
  bool (*buffer_is_host)(void*) = nullptr;
  void (*tensor_get)(const Tensor*, void*, size_t, size_t) = nullptr;
  size_t tensor_bytes = 0;  // of the engine's whole struct, for copies
  int32_t op_mul_mat_id = -1;
  int32_t op_none = 0;
  ComputeApi compute;

  // Whether the bytes of a tensor, or of the one it is a view of, can be read where they are.
  bool is_on_host(const Tensor* tensor) const {
    void* own = tensor->buffer;
    void* buffer = own != nullptr || tensor->view_src == nullptr ? own : tensor->view_src->buffer;
    return buffer == nullptr || buffer_is_host(buffer);
  }

  // Resolves everything from the library that holds `caller` and checks the layout. `own_compute` is our interposed
  // function, which must not be taken for the engine's. One line of reason on failure.
  bool load(const void* caller, const void* own_compute, const std::string& planned_engine, std::string* error);
};

}  // namespace guanaco
