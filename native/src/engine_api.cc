#include "engine_api.h"

#include <dlfcn.h>

#include <cstring>
#include <memory>

namespace guanaco {

namespace {

// Only used while checking the layout.
struct CheckApi {
  Context* (*init)(InitParams) = nullptr;
  void (*free)(Context*) = nullptr;
  Tensor* (*new_3d)(Context*, int32_t, int64_t, int64_t, int64_t) = nullptr;
  Tensor* (*new_2d)(Context*, int32_t, int64_t, int64_t) = nullptr;
  Tensor* (*mul_mat_id)(Context*, Tensor*, Tensor*, Tensor*) = nullptr;
  Tensor* (*view_1d)(Context*, Tensor*, int64_t, size_t) = nullptr;
  Tensor* (*set_name)(Tensor*, const char*) = nullptr;
  void* (*get_data)(const Tensor*) = nullptr;
  const char* (*get_name)(const Tensor*) = nullptr;
  Graph* (*new_graph)(Context*) = nullptr;
  void (*expand)(Graph*, Tensor*) = nullptr;
  size_t (*overhead)() = nullptr;
};

template <typename Function>
bool resolve(void* library, const char* name, Function* function, std::string* error) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return true;
  *error = std::string("the engine does not export ") + name;
  return false;
}

bool resolve_check(void* library, CheckApi* api, std::string* error) {
  return resolve(library, "ggml_init", &api->init, error) && resolve(library, "ggml_free", &api->free, error) &&
         resolve(library, "ggml_new_tensor_3d", &api->new_3d, error) &&
         resolve(library, "ggml_new_tensor_2d", &api->new_2d, error) &&
         resolve(library, "ggml_mul_mat_id", &api->mul_mat_id, error) &&
         resolve(library, "ggml_view_1d", &api->view_1d, error) &&
         resolve(library, "ggml_set_name", &api->set_name, error) &&
         resolve(library, "ggml_get_data", &api->get_data, error) &&
         resolve(library, "ggml_get_name", &api->get_name, error) &&
         resolve(library, "ggml_new_graph", &api->new_graph, error) &&
         resolve(library, "ggml_build_forward_expand", &api->expand, error) &&
         resolve(library, "ggml_tensor_overhead", &api->overhead, error);
}

void resolve_compute(void* library, ComputeApi* api) {
  std::string ignored;
  api->complete = resolve(library, "ggml_backend_cpu_init", &api->cpu_init, &ignored) &&
                  resolve(library, "ggml_backend_free", &api->backend_free, &ignored) &&
                  resolve(library, "ggml_backend_cpu_set_n_threads", &api->set_n_threads, &ignored) &&
                  resolve(library, "ggml_backend_graph_compute", &api->graph_compute, &ignored) &&
                  resolve(library, "ggml_init", &api->init, &ignored) &&
                  resolve(library, "ggml_free", &api->free, &ignored) &&
                  resolve(library, "ggml_new_graph_custom", &api->new_graph, &ignored) &&
                  resolve(library, "ggml_graph_overhead_custom", &api->graph_overhead, &ignored) &&
                  resolve(library, "ggml_graph_add_node", &api->graph_add_node, &ignored) &&
                  resolve(library, "ggml_graph_clear", &api->graph_clear, &ignored) &&
                  resolve(library, "ggml_nbytes", &api->nbytes, &ignored);
  api->shares_threads = dlsym(library, "GOMP_parallel") != nullptr || dlsym(library, "__kmpc_fork_call") != nullptr;
}

const char* first_difference(const CheckApi& check, EngineApi* api, Context* context) {
  Tensor* experts = check.new_3d(context, kTypeF32, 8, 4, 3);
  Tensor* rows = check.new_3d(context, kTypeF32, 8, 1, 2);
  Tensor* ids = check.new_2d(context, kTypeI32, 2, 2);
  Tensor* product = check.mul_mat_id(context, experts, rows, ids);
  Tensor* view = check.view_1d(context, experts, 8, 32);
  check.set_name(product, "guanaco-check");
  if (experts->type != kTypeF32 || ids->type != kTypeI32) return "type";
  if (experts->ne[0] != 8 || experts->ne[1] != 4 || experts->ne[2] != 3 || experts->ne[3] != 1) return "ne";
  if (experts->nb[0] != 4 || experts->nb[1] != 32 || experts->nb[2] != 128 || experts->nb[3] != 384) return "nb";
  const char* op = api->op_name(product->op);
  if (op == nullptr || std::strcmp(op, "MUL_MAT_ID") != 0) return "op";
  api->op_mul_mat_id = product->op;
  api->op_none = experts->op;
  if (std::strcmp(api->op_name(experts->op), "NONE") != 0) return "op";
  if (product->src[0] != experts || product->src[1] != rows || product->src[2] != ids || product->src[3] != nullptr) {
    return "src";
  }
  if (view->view_src != experts || view->view_offs != 32) return "view_src";
  if (check.get_data(experts) == nullptr || check.get_data(experts) != experts->data) return "data";
  if (check.get_name(product) != product->name || std::strcmp(product->name, "guanaco-check") != 0) return "name";
  if (experts->buffer != nullptr) return "buffer";
  Graph* graph = check.new_graph(context);
  check.expand(graph, product);
  if (api->graph_n_nodes(graph) != 1 || api->graph_node(graph, 0) != product) return "graph nodes";
  return nullptr;
}

}  // namespace

bool EngineApi::load(const void* caller, const void* own_compute, const std::string& planned_engine,
                     std::string* error) {
  Dl_info info{};
  if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) {
    *error = "cannot tell which library the engine is in";
    return false;
  }
  // Python opens its modules privately, so the names are looked up in that library and what it needs.
  void* library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr || dlsym(library, "ggml_backend_sched_graph_compute_async") == own_compute) {
    library = RTLD_NEXT;
  }
  CheckApi check;
  if (!resolve(library, "ggml_backend_sched_set_eval_callback", &set_eval_callback, error) ||
      !resolve(library, "ggml_backend_sched_graph_compute_async", &graph_compute_async, error) ||
      !resolve(library, "ggml_graph_n_nodes", &graph_n_nodes, error) ||
      !resolve(library, "ggml_graph_node", &graph_node, error) ||
      !resolve(library, "ggml_op_name", &op_name, error) ||
      !resolve(library, "ggml_backend_buffer_is_host", &buffer_is_host, error) ||
      !resolve(library, "ggml_backend_tensor_get", &tensor_get, error) || !resolve_check(library, &check, error)) {
    return false;
  }
  resolve_compute(library, &compute);
  constexpr size_t kObjectBytes = 32;  // ggml's list header in front of each tensor
  tensor_bytes = check.overhead() - kObjectBytes;
  Context* context = check.init({check.overhead() * 16 + (size_t{1} << 20), nullptr, false});
  const char* difference = tensor_bytes < sizeof(Tensor) || tensor_bytes > 4096 ? "size of a tensor" : nullptr;
  if (difference == nullptr) difference = first_difference(check, this, context);
  check.free(context);
  if (difference == nullptr) return true;
  *error = std::string("the engine in ") + info.dli_fname + " lays out ggml tensors differently (" + difference +
           "); this guanaco was made for " + (planned_engine.empty() ? "another version" : planned_engine) +
           "; install that version";
  return false;
}

}  // namespace guanaco
