// Finding the engine's functions in its library, and refusing one whose structures lie differently.
#include <dlfcn.h>

#include "check.h"
#include "engine_api.h"
#include "fake_engine.h"
#include "mini_graph.h"

using fake::Fault;
using guanaco::EngineApi;

namespace {

const void* in_the_engine() { return reinterpret_cast<const void*>(&fake_engine_decode); }

}  // namespace

TEST(engine_api_loads) {
  EngineApi api;
  std::string error;
  REQUIRE(api.load(in_the_engine(), nullptr, "test 1", &error));
  CHECK(api.graph_compute_async == &ggml_backend_sched_graph_compute_async);
  CHECK(api.set_eval_callback == &ggml_backend_sched_set_eval_callback);
  CHECK_EQ(api.op_mul_mat_id, fake::kMulMatId);
  CHECK_EQ(api.op_none, fake::kNone);
  CHECK_EQ(api.tensor_bytes, sizeof(fake::FullTensor));
  CHECK(api.compute.complete);
  CHECK(!api.compute.shares_threads);  // it has none
}

// Computing outside the engine's graphs is an addition: an engine without it streams all the same.
TEST(engine_api_may_lack_what_own_graphs_take) {
  guanaco::ComputeApi compute;
  CHECK(!compute.complete);
  EngineApi api;
  guanaco::MiniGraph mini(api);
  CHECK(!mini.usable());
  CHECK(!mini.run({}, 1));
}

TEST(engine_api_refuses_other_layouts) {
  const struct {
    Fault fault;
    const char* field;
  } kCases[] = {{Fault::kType, "(type)"},         {Fault::kShape, "(ne)"},       {Fault::kStride, "(nb)"},
                {Fault::kOpName, "(op)"},         {Fault::kSources, "(src)"},    {Fault::kView, "(view_src)"},
                {Fault::kData, "(data)"},         {Fault::kName, "(name)"},      {Fault::kBuffer, "(buffer)"},
                {Fault::kGraphNodes, "(graph nodes)"}, {Fault::kTooSmall, "(size of a tensor)"},
                {Fault::kTooLarge, "(size of a tensor)"}};
  for (const auto& entry : kCases) {
    fake_engine_fault(entry.fault);
    EngineApi api;
    std::string error;
    CHECK(!api.load(in_the_engine(), nullptr, "engine 2026.1", &error));
    CHECK_CONTAINS(error, entry.field);
    CHECK_CONTAINS(error, "engine 2026.1");
    CHECK_CONTAINS(error, "fake_engine");  // the library it looked at
  }
  fake_engine_fault(Fault::kNone);
}

TEST(engine_api_names_what_is_missing) {
  EngineApi api;
  std::string error;
  const int not_own = 0;
  void* of_libc = dlsym(RTLD_DEFAULT, "getpwnam_r");
  REQUIRE(of_libc != nullptr);
  CHECK(!api.load(of_libc, &not_own, "", &error));
  CHECK_CONTAINS(error, "does not export ggml_backend_sched_set_eval_callback");
  CHECK(!api.load(&not_own, &not_own, "", &error));
  CHECK_CONTAINS(error, "which library");
}

// When the caller's library shows our own function under the engine's name, the next one in line is the engine's.
TEST(engine_api_never_takes_our_own_function) {
  EngineApi api;
  std::string error;
  const void* own = reinterpret_cast<const void*>(&ggml_backend_sched_graph_compute_async);
  // Searched after the program itself, as after a preloaded library.
  REQUIRE(api.load(in_the_engine(), own, "", &error));
  CHECK(api.graph_compute_async != nullptr);
}
