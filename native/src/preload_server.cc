// The names of the engine's server that this library puts itself in front of: results and drafts.
//
// Owns: nothing but the forwarding. They are C++ functions by their mangled names; what they get and give is passed on as
// it came, and but for one flag never looked into. Without a plan every function does what the original does.
#include <algorithm>
#include <chrono>

#include "guanaco/guanaco.h"
#include "preload.h"
#include "result_notices.h"

#define GUANACO_RECEIVE "_ZN15server_response17recv_with_timeoutERKSt13unordered_setIiSt4hashIiESt8equal_toIiESaIiEEi"
#define GUANACO_SEND "_ZN15server_response4sendEOSt10unique_ptrI18server_task_resultSt14default_deleteIS1_EE"
#define GUANACO_BROADCAST "_ZN15server_response9broadcastEOSt10unique_ptrI18server_task_resultSt14default_deleteIS1_EE"
#define GUANACO_DRAFT "_Z24common_speculative_draftP18common_speculative"
#define GUANACO_DRAFT_PARAMS "_Z35common_speculative_get_draft_paramsP18common_speculativei"
#define GUANACO_DRAFT_BEGIN "_Z24common_speculative_beginP18common_speculativeiRKSt6vectorIiSaIiEE"
#define GUANACO_DRAFT_ACCEPT "_Z25common_speculative_acceptP18common_speculativeit"

using guanaco::active_runtime;
using guanaco::engine_function;

namespace {

// The engine's smart pointer to a result: one word, and with a destructor of its own, which decides how it is returned.
// Whoever receives it owns what it points to.
class Result {
 public:
  Result() = default;
  Result(Result&& other) noexcept : pointer_(other.pointer_) { other.pointer_ = nullptr; }
  Result(const Result&) = delete;
  ~Result() {}
  explicit operator bool() const { return pointer_ != nullptr; }

 private:
  void* pointer_ = nullptr;
};

// Then the engine looks whether the client is still there: a slot is free again so soon after it left.
constexpr std::chrono::milliseconds kLongestWait{250};
guanaco::ResultNotices g_notices;

}  // namespace

extern "C" {

GUANACO_API Result guanaco_receive(void* results, const void* ids, int timeout_s) __asm__(GUANACO_RECEIVE);
GUANACO_API void guanaco_send(void* results, void* result) __asm__(GUANACO_SEND);
GUANACO_API void guanaco_broadcast(void* results, void* result) __asm__(GUANACO_BROADCAST);
GUANACO_API void guanaco_draft(void* drafter) __asm__(GUANACO_DRAFT);
GUANACO_API void* guanaco_draft_params(void* drafter, int32_t sequence) __asm__(GUANACO_DRAFT_PARAMS);
GUANACO_API void guanaco_draft_begin(void* drafter, int32_t sequence, const void* prompt) __asm__(GUANACO_DRAFT_BEGIN);
GUANACO_API void guanaco_draft_accept(void* drafter, int32_t sequence, uint16_t n) __asm__(GUANACO_DRAFT_ACCEPT);

Result guanaco_receive(void* results, const void* ids, int timeout_s) {
  using Receive = Result (*)(void*, const void*, int);
  static const Receive real = reinterpret_cast<Receive>(engine_function(
      __builtin_return_address(0), GUANACO_RECEIVE, reinterpret_cast<const void*>(&guanaco_receive)));
  if (active_runtime() == nullptr || !g_notices.is_used()) return real(results, ids, timeout_s);
  const auto timeout = std::min<std::chrono::milliseconds>(std::chrono::seconds(timeout_s), kLongestWait);
  return g_notices.wait(timeout, [&] { return real(results, ids, 0); });
}

void guanaco_send(void* results, void* result) {
  using Send = void (*)(void*, void*);
  static const Send real = reinterpret_cast<Send>(engine_function(__builtin_return_address(0), GUANACO_SEND,
                                                                  reinterpret_cast<const void*>(&guanaco_send)));
  real(results, result);
  g_notices.sent();
}

void guanaco_broadcast(void* results, void* result) {
  using Send = void (*)(void*, void*);
  static const Send real = reinterpret_cast<Send>(engine_function(
      __builtin_return_address(0), GUANACO_BROADCAST, reinterpret_cast<const void*>(&guanaco_broadcast)));
  real(results, result);
  g_notices.sent();
}

void guanaco_draft(void* drafter) {
  using Draft = void (*)(void*);
  static const Draft real = reinterpret_cast<Draft>(engine_function(__builtin_return_address(0), GUANACO_DRAFT,
                                                                    reinterpret_cast<const void*>(&guanaco_draft)));
  guanaco::Runtime* active = active_runtime();
  if (active == nullptr || active->drafts().begin_step()) real(drafter);
}

void* guanaco_draft_params(void* drafter, int32_t sequence) {
  using Params = void* (*)(void*, int32_t);
  static const Params real = reinterpret_cast<Params>(engine_function(
      __builtin_return_address(0), GUANACO_DRAFT_PARAMS, reinterpret_cast<const void*>(&guanaco_draft_params)));
  void* params = real(drafter, sequence);
  // Their first member: whether this sequence is to get a draft.
  if (guanaco::Runtime* active = active_runtime()) active->drafts().decodes(sequence, static_cast<bool*>(params));
  return params;
}

void guanaco_draft_begin(void* drafter, int32_t sequence, const void* prompt) {
  using Begin = void (*)(void*, int32_t, const void*);
  static const Begin real = reinterpret_cast<Begin>(engine_function(
      __builtin_return_address(0), GUANACO_DRAFT_BEGIN, reinterpret_cast<const void*>(&guanaco_draft_begin)));
  if (guanaco::Runtime* active = active_runtime()) active->drafts().prompt_read();
  real(drafter, sequence, prompt);
}

void guanaco_draft_accept(void* drafter, int32_t sequence, uint16_t n) {
  using Accept = void (*)(void*, int32_t, uint16_t);
  static const Accept real = reinterpret_cast<Accept>(engine_function(
      __builtin_return_address(0), GUANACO_DRAFT_ACCEPT, reinterpret_cast<const void*>(&guanaco_draft_accept)));
  if (guanaco::Runtime* active = active_runtime()) active->drafts_accepted(n);
  real(drafter, sequence, n);
}

}  // extern "C"
