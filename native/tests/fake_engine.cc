#include "fake_engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>

using fake::Fault;
using fake::FullTensor;
using guanaco::Graph;
using guanaco::kTypeF32;
using guanaco::Scheduler;
using guanaco::Tensor;

namespace guanaco {

struct Context {
  std::deque<FullTensor> tensors;
  std::deque<Graph> graphs;
  std::vector<std::unique_ptr<char[]>> data;
};

}  // namespace guanaco

using guanaco::Context;

namespace {

Fault g_fault = Fault::kNone;
std::vector<fake::OwnRun> g_runs;
int g_backends = 0;

struct Backend {
  int n_threads = 4;
};

FullTensor* new_tensor(Context* context, int32_t type, int64_t ne0, int64_t ne1, int64_t ne2) {
  FullTensor* tensor = &context->tensors.emplace_back();
  std::memset(static_cast<void*>(tensor), 0, sizeof *tensor);
  tensor->type = g_fault == Fault::kType ? type + 1 : type;
  const int64_t ne[] = {ne0, ne1, ne2, 1};
  size_t stride = 4;
  for (int i = 0; i < 4; ++i) {
    tensor->ne[i] = ne[i] + (g_fault == Fault::kShape && i == 2 ? 1 : 0);
    tensor->nb[i] = stride * (g_fault == Fault::kStride && i == 1 ? 2 : 1);
    stride *= static_cast<size_t>(ne[i]);
  }
  context->data.push_back(std::make_unique<char[]>(stride));
  tensor->data = context->data.back().get();
  if (g_fault == Fault::kBuffer) tensor->buffer = tensor;
  return tensor;
}

template <typename T>
T& at(const Tensor* tensor, int64_t i0, int64_t i1) {
  return *reinterpret_cast<T*>(static_cast<char*>(tensor->data) + static_cast<size_t>(i0) * tensor->nb[0] +
                               static_cast<size_t>(i1) * tensor->nb[1]);
}

// A number that depends on every byte and its place.
float digest(const std::string& bytes) {
  uint32_t sum = 1;
  for (const char byte : bytes) sum = sum * 31 + static_cast<unsigned char>(byte);
  return static_cast<float>(sum % 65521);
}

float& at_row(const Tensor* tensor, int64_t i0, int64_t i1, int64_t i2) {
  return *(&at<float>(tensor, i0, i1) + static_cast<size_t>(i2) * tensor->nb[2] / sizeof(float));
}

// A product of experts, row by row: each depends on the expert's bytes and on its own input.
void multiply_experts(const Tensor* node, const fake::ProductResult& result) {
  const Tensor* input = node->src[1];
  for (size_t i = 0; i < result.slices.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) % node->ne[1], token = static_cast<int64_t>(i) / node->ne[1];
    const float weight = digest(result.slices[i]);
    for (int64_t k = 0; k < node->ne[0]; ++k) {
      at_row(node, k, row, token) = weight + static_cast<float>(k) * at_row(input, 0, row % input->ne[1], token);
    }
  }
}

fake::ProductResult compute_product(const Tensor* node) {
  const Tensor* weights = node->src[0];
  const Tensor* ids = node->src[2];
  fake::ProductResult result = {
      weights->ne[2], static_cast<const char*>(weights->data), static_cast<const char*>(ids->data), {}};
  const size_t n_bytes = static_cast<size_t>(weights->ne[0] * weights->ne[1]);
  for (int64_t row = 0; row < ids->ne[1]; ++row) {
    for (int64_t k = 0; k < ids->ne[0]; ++k) {
      int32_t id = 0;
      std::memcpy(&id, result.ids + static_cast<size_t>(row) * ids->nb[1] + static_cast<size_t>(k) * ids->nb[0], 4);
      const bool good = id >= 0 && id < weights->ne[2];
      result.slices.push_back(good ? std::string(result.weights + static_cast<size_t>(id) * weights->nb[2], n_bytes)
                                   : "?");
    }
  }
  const bool has_rows = node->data != nullptr && node->src[1]->data != nullptr && node->ne[1] == ids->ne[0] &&
                        node->ne[2] == ids->ne[1] && node->src[1]->ne[2] == ids->ne[1];
  if (has_rows) multiply_experts(node, result);
  return result;
}

void compute_rows(const Tensor* node) {
  const Tensor* a = node->src[0];
  const Tensor* b = node->src[1];
  for (int64_t row = 0; row < node->ne[1]; ++row) {
    if (node->op == fake::kArgsort) {
      std::vector<int32_t> order(static_cast<size_t>(node->ne[0]));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t i, int32_t j) { return at<float>(a, i, row) > at<float>(a, j, row); });
      for (int64_t k = 0; k < node->ne[0]; ++k) at<int32_t>(node, k, row) = order[static_cast<size_t>(k)];
      continue;
    }
    float sum = 0;
    for (int64_t k = 0; k < a->ne[0]; ++k) sum += at<float>(a, k, row) * at<float>(a, k, row);
    const float length = std::sqrt(sum / static_cast<float>(a->ne[0]) + 1e-6f);
    for (int64_t k = 0; k < node->ne[0]; ++k) {
      float& value = at<float>(node, k, row);
      if (node->op == fake::kRmsNorm) value = at<float>(a, k, row) / length;
      if (node->op == fake::kMul) value = at<float>(a, k, row) * at<float>(b, k, row % b->ne[1]);
      if (node->op == fake::kAdd) value = at<float>(a, k, row) + at<float>(b, k, row % b->ne[1]);
      if (node->op == fake::kCpy) value = at<float>(a, k, row);
      if (node->op != fake::kMulMat) continue;
      float product = 0;
      for (int64_t i = 0; i < a->ne[0]; ++i) product += at<float>(a, i, k) * at<float>(b, i, row);
      value = product;
    }
  }
}

bool has_data(const Tensor* node) {
  if (node->data == nullptr || node->src[0] == nullptr || node->src[0]->data == nullptr) return false;
  const bool is_binary = node->op == fake::kMul || node->op == fake::kAdd || node->op == fake::kMulMat;
  return !is_binary || (node->src[1] != nullptr && node->src[1]->data != nullptr);
}

void compute_node(Tensor* node, std::vector<fake::ProductResult>* products) {
  if (node->op == fake::kNone) return;
  const FullTensor* full = static_cast<const FullTensor*>(node);
  if (node->op == fake::kMulMatId) products->push_back(compute_product(node));
  if (full->action != nullptr) (*full->action)();
  const bool has_rows = node->op == fake::kArgsort || node->op == fake::kRmsNorm || node->op == fake::kMul ||
                        node->op == fake::kAdd || node->op == fake::kMulMat || node->op == fake::kCpy;
  if (full->action == nullptr && has_rows && has_data(node)) compute_rows(node);
}

void compute_node(Scheduler* scheduler, Tensor* node) {
  if (scheduler->before_node) scheduler->before_node(node);
  scheduler->computed.push_back(node);
  std::vector<fake::ProductResult> products;
  compute_node(node, &products);
  if (!products.empty()) scheduler->products[node] = products[0];
}

// One split: nodes are asked for until one is needed, then all of them are computed, then that one is shown.
void compute_split(Scheduler* scheduler, const std::vector<Tensor*>& nodes, size_t begin, size_t end) {
  for (size_t first = begin; first < end; ++first) {
    size_t last = first;
    bool need = scheduler->callback != nullptr && scheduler->callback(nodes[last], true, scheduler->user_data);
    while (!need && last + 1 < end) {
      ++last;
      need = scheduler->callback != nullptr && scheduler->callback(nodes[last], true, scheduler->user_data);
    }
    for (size_t i = first; i <= last; ++i) compute_node(scheduler, nodes[i]);
    // A refusal ends this split; the next one still runs.
    if (need && !scheduler->callback(nodes[last], false, scheduler->user_data)) return;
    first = last;
  }
}

}  // namespace

extern "C" {

void fake_engine_fault(Fault fault) { g_fault = fault; }

void fake_engine_take_runs(std::vector<fake::OwnRun>* runs) {
  *runs = std::move(g_runs);
  g_runs.clear();
}

int fake_engine_backends() { return g_backends; }

int fake_engine_decode(Scheduler* scheduler, Graph* graph) {
  return ggml_backend_sched_graph_compute_async(scheduler, graph);
}

void ggml_backend_sched_set_eval_callback(Scheduler* scheduler, guanaco::EvalCallback callback, void* user_data) {
  scheduler->callback = callback;
  scheduler->user_data = user_data;
}

__attribute__((noinline)) int ggml_backend_sched_graph_compute_async(Scheduler* scheduler, Graph* graph) {
  if (scheduler->status != 0) return scheduler->status;
  for (size_t split = 0; split < graph->split_begins.size(); ++split) {
    if (split < graph->split_inputs.size() && graph->split_inputs[split]) graph->split_inputs[split]();
    const size_t end = split + 1 < graph->split_begins.size() ? graph->split_begins[split + 1] : graph->nodes.size();
    compute_split(scheduler, graph->nodes, graph->split_begins[split], end);
  }
  return 0;
}

FAKE_API int ggml_graph_n_nodes(Graph* graph) { return static_cast<int>(graph->nodes.size()); }

FAKE_API Tensor* ggml_graph_node(Graph* graph, int index) { return graph->nodes.at(static_cast<size_t>(index)); }

FAKE_API const char* ggml_op_name(int32_t op) {
  switch (op) {
    case fake::kNone: return "NONE";
    case fake::kAdd: return "ADD";
    case fake::kMul: return "MUL";
    case fake::kRmsNorm: return "RMS_NORM";
    case fake::kReshape: return "RESHAPE";
    case fake::kCpy: return "CPY";
    case fake::kMulMat: return "MUL_MAT";
    case fake::kGetRows: return "GET_ROWS";
    case fake::kArgsort: return "ARGSORT";
    case fake::kView: return "VIEW";
    case fake::kMulMatId: return g_fault == Fault::kOpName ? "MUL_MAT" : "MUL_MAT_ID";
    default: return nullptr;
  }
}

FAKE_API bool ggml_backend_buffer_is_host(void* buffer) { return static_cast<fake::Buffer*>(buffer)->is_host; }

FAKE_API void ggml_backend_tensor_get(const Tensor* tensor, void* data, size_t offset, size_t nbytes) {
  const Tensor* owner = tensor->view_src == nullptr ? tensor : tensor->view_src;
  const fake::Buffer* buffer = static_cast<const fake::Buffer*>(owner->buffer);
  std::memcpy(data, buffer->card_bytes + tensor->view_offs + offset, nbytes);
}

struct InitParams {
  size_t mem_size;
  void* mem_buffer;
  bool no_alloc;
};

FAKE_API void* ggml_backend_cpu_init() {
  if (g_fault == Fault::kNoBackend) return nullptr;
  ++g_backends;
  return new Backend;
}

FAKE_API void ggml_backend_free(void* backend) {
  --g_backends;
  delete static_cast<Backend*>(backend);
}

FAKE_API void ggml_backend_cpu_set_n_threads(void* backend, int n_threads) {
  static_cast<Backend*>(backend)->n_threads = n_threads;
}

FAKE_API int ggml_backend_graph_compute(void* backend, Graph* graph) {
  fake::OwnRun& run = g_runs.emplace_back();
  run.n_threads = static_cast<Backend*>(backend)->n_threads;
  if (g_fault == Fault::kCompute) return guanaco::kStatusFailed;
  for (Tensor* node : graph->nodes) {
    run.ops.push_back(node->op);
    compute_node(node, &run.products);
  }
  return guanaco::kStatusSuccess;
}

FAKE_API size_t ggml_graph_overhead_custom(size_t size, bool) { return size * sizeof(void*); }

FAKE_API Graph* ggml_new_graph_custom(Context* context, size_t, bool) { return &context->graphs.emplace_back(); }

FAKE_API void ggml_graph_clear(Graph* graph) { graph->nodes.clear(); }

FAKE_API void ggml_graph_add_node(Graph* graph, Tensor* tensor) { graph->nodes.push_back(tensor); }

FAKE_API size_t ggml_nbytes(const Tensor* tensor) {
  size_t nbytes = sizeof(float);
  for (int i = 0; i < guanaco::kMaxDims; ++i) nbytes += static_cast<size_t>(tensor->ne[i] - 1) * tensor->nb[i];
  return nbytes;
}

FAKE_API Context* ggml_init(InitParams) { return new Context; }

FAKE_API void ggml_free(Context* context) { delete context; }

FAKE_API Tensor* ggml_new_tensor_3d(Context* context, int32_t type, int64_t ne0, int64_t ne1, int64_t ne2) {
  return new_tensor(context, type, ne0, ne1, ne2);
}

FAKE_API Tensor* ggml_new_tensor_2d(Context* context, int32_t type, int64_t ne0, int64_t ne1) {
  return new_tensor(context, type, ne0, ne1, 1);
}

FAKE_API Tensor* ggml_mul_mat_id(Context* context, Tensor* experts, Tensor* rows, Tensor* ids) {
  Tensor* node = new_tensor(context, kTypeF32, experts->ne[1], ids->ne[0], rows->ne[2]);
  node->op = fake::kMulMatId;
  node->src[0] = g_fault == Fault::kSources ? rows : experts;
  node->src[1] = rows;
  node->src[2] = ids;
  return node;
}

FAKE_API Tensor* ggml_view_1d(Context* context, Tensor* tensor, int64_t ne0, size_t offset) {
  Tensor* view = new_tensor(context, tensor->type, ne0, 1, 1);
  view->op = fake::kView;
  view->view_src = tensor;
  view->view_offs = g_fault == Fault::kView ? 0 : offset;
  return view;
}

FAKE_API Tensor* ggml_set_name(Tensor* tensor, const char* name) {
  std::strncpy(tensor->name, name, sizeof tensor->name - 1);
  return tensor;
}

FAKE_API void* ggml_get_data(const Tensor* tensor) { return g_fault == Fault::kData ? nullptr : tensor->data; }

FAKE_API const char* ggml_get_name(const Tensor* tensor) {
  return g_fault == Fault::kName ? tensor->name + 1 : tensor->name;
}

FAKE_API Graph* ggml_new_graph(Context* context) { return &context->graphs.emplace_back(); }

FAKE_API void ggml_build_forward_expand(Graph* graph, Tensor* tensor) {
  if (g_fault != Fault::kGraphNodes) graph->nodes.push_back(tensor);
}

FAKE_API size_t ggml_tensor_overhead() {
  if (g_fault == Fault::kTooSmall) return 32 + sizeof(Tensor) - 8;
  return 32 + (g_fault == Fault::kTooLarge ? 5000 : sizeof(FullTensor));
}

}  // extern "C"
