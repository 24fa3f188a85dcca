// The public prefix of ggml's structures that the seam reads and writes, declared anew.
//
// Owns: names and positions of fields. engine_api.cc checks every one of them against the running engine before
// the first graph; a mismatch stops the load. Refuses: anything ggml keeps private (graphs are read through its
// exported functions only).
#pragma once

#include <cstddef>
#include <cstdint>

namespace guanaco {

constexpr int kMaxDims = 4;
constexpr int kMaxSrc = 10;
constexpr int kMaxName = 64;
constexpr int kOpParamInts = 16;

struct Tensor {
  int32_t type;
  void* buffer;
  int64_t ne[kMaxDims];
  size_t nb[kMaxDims];
  int32_t op;
  int32_t op_params[kOpParamInts];
  int32_t flags;
  Tensor* src[kMaxSrc];
  Tensor* view_src;
  size_t view_offs;
  void* data;
  char name[kMaxName];
  // The engine's struct goes on; engine_api reports its whole size for copies.
};

struct Graph;      // ggml_cgraph, opaque
struct Context;    // ggml_context, opaque
struct Scheduler;  // ggml_backend_sched, opaque

constexpr int32_t kTypeF32 = 0;
constexpr int32_t kTypeI32 = 26;

constexpr int kStatusFailed = -1;
constexpr int kStatusSuccess = 0;

using EvalCallback = bool (*)(Tensor* tensor, bool ask, void* user_data);

}  // namespace guanaco
