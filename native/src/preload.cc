// The names this library puts in front of the engine's and the C library's when it is preloaded.
//
// Owns: nothing but the forwarding. Without a plan in the environment every function does what the original does.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "guanaco/guanaco.h"
#include "preload.h"

using guanaco::EvalCallback;
using guanaco::Graph;
using guanaco::Runtime;
using guanaco::Scheduler;

namespace {

std::atomic<Runtime*> g_runtime{nullptr};

Runtime* runtime() { return g_runtime.load(std::memory_order_acquire); }

// Whether our parent wrote the plan, for us. One that is left in an environment is nobody's: it must not end a program
// that preloads or opens this library for another reason.
bool is_for_us() {
  const char* parent = getenv("GUANACO_PLAN_PARENT");
  return parent != nullptr && std::to_string(getppid()) == parent;
}

__attribute__((constructor)) void start() {
  const char* plan = getenv("GUANACO_PLAN");
  if (plan == nullptr || *plan == 0 || !is_for_us()) return;
  g_runtime.store(Runtime::start(plan), std::memory_order_release);
  // Children of the engine must not inherit the plan.
  unsetenv("LD_PRELOAD");
  unsetenv("GUANACO_PLAN");
  unsetenv("GUANACO_PLAN_PARENT");
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

namespace guanaco {

Runtime* active_runtime() { return runtime(); }

void* engine_function(const void* caller, const char* name, const void* own) {
  Dl_info info{};
  if (dladdr(caller, &info) != 0 && info.dli_fname != nullptr) {
    void* library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (library != nullptr) {
      void* found = dlsym(library, name);
      dlclose(library);
      if (found != nullptr && found != own) return found;
    }
  }
  return dlsym(RTLD_NEXT, name);
}

}  // namespace guanaco

using guanaco::engine_function;

extern "C" {

GUANACO_API int ggml_backend_sched_graph_compute_async(Scheduler* scheduler, Graph* graph) {
  const void* caller = __builtin_return_address(0);
  const void* own = reinterpret_cast<const void*>(&ggml_backend_sched_graph_compute_async);
  if (Runtime* active = runtime()) return active->compute(scheduler, graph, caller, own);
  using Compute = int (*)(Scheduler*, Graph*);
  static const Compute real =
      reinterpret_cast<Compute>(engine_function(caller, "ggml_backend_sched_graph_compute_async", own));
  return real(scheduler, graph);
}

GUANACO_API void ggml_backend_sched_set_eval_callback(Scheduler* scheduler, EvalCallback callback, void* user_data) {
  const void* caller = __builtin_return_address(0);
  using Setter = void (*)(Scheduler*, EvalCallback, void*);
  if (Runtime* active = runtime()) {
    active->remember_callback(scheduler, {callback, user_data});
    const void* own = reinterpret_cast<const void*>(&ggml_backend_sched_graph_compute_async);
    const Setter setter = active->engine_setter(caller, own);
    if (setter != nullptr) setter(scheduler, callback, user_data);
    return;
  }
  static const Setter real = reinterpret_cast<Setter>(
      engine_function(caller, "ggml_backend_sched_set_eval_callback",
                      reinterpret_cast<const void*>(&ggml_backend_sched_set_eval_callback)));
  real(scheduler, callback, user_data);
}

GUANACO_API void* mmap64(void* address, size_t nbytes, int protection, int flags, int fd, off64_t offset) {
  Runtime* active = runtime();
  const bool whole = active != nullptr && fd >= 0 && offset == 0 && address == nullptr &&
                     (flags & (MAP_SHARED | MAP_PRIVATE | MAP_FIXED)) == MAP_SHARED && protection == PROT_READ;
  const int file = whole ? active->planned_file(fd) : -1;
  if (file < 0 || !active->manages()) {
    void* plain = guanaco::raw_mmap(address, nbytes, protection, flags, fd, offset);
    // Replay alone still needs to know where the experts are.
    if (file >= 0 && plain != MAP_FAILED) active->noted(file, static_cast<char*>(plain), nbytes);
    return plain;
  }
  // The engine asks for the whole file to be read at once; only the dense part will be.
  void* base = guanaco::raw_mmap(address, nbytes, protection, flags & ~MAP_POPULATE, fd, offset);
  if (base == MAP_FAILED) return base;
  bool is_mapped = false;
  try {
    is_mapped = active->mapped(file, static_cast<char*>(base), nbytes);
  } catch (const std::exception& problem) {
    active->fail_load(problem.what());
  }
  if (!is_mapped) {
    guanaco::raw_munmap(base, nbytes);
    errno = EIO;
    return MAP_FAILED;
  }
  return base;
}

GUANACO_API void* mmap(void* address, size_t nbytes, int protection, int flags, int fd, off_t offset) {
  return mmap64(address, nbytes, protection, flags, fd, offset);
}

GUANACO_API int munmap(void* address, size_t nbytes) {
  if (Runtime* active = runtime()) active->unmapped(address, nbytes);
  return guanaco::raw_munmap(address, nbytes);
}

GUANACO_API int posix_madvise(void* address, size_t nbytes, int advice) {
  Runtime* active = runtime();
  // The plan decides what is read ahead; advice about the order of access stays the engine's.
  const bool is_ahead = advice == POSIX_MADV_WILLNEED;
  if (active != nullptr && is_ahead && active->manages() && active->covers(address)) return 0;
  static const auto real = next<int (*)(void*, size_t, int)>("posix_madvise");
  return real(address, nbytes, advice);
}

GUANACO_API int guanaco_abi_version(void) { return GUANACO_ABI_VERSION; }

GUANACO_API int guanaco_has_uring(void) {
#ifdef GUANACO_HAVE_URING
  return 1;
#else
  return 0;
#endif
}

GUANACO_API unsigned long guanaco_stats_bytes(void) { return sizeof(guanaco::StatsBlock); }

GUANACO_API int guanaco_check_plan(const char* path, char* error, unsigned long error_bytes) {
  guanaco::LoadPlan plan;
  std::string reason;
  const bool good = guanaco::read_plan(path, &plan, &reason);
  if (error_bytes > 0) std::snprintf(error, error_bytes, "%s", reason.c_str());
  return good ? 1 : 0;
}

}  // extern "C"
