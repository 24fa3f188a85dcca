/* C ABI of libguanaco.so. Opened with ctypes by the parent; preloaded into the worker. */
#ifndef GUANACO_GUANACO_H
#define GUANACO_GUANACO_H

#include <stdint.h>

#define GUANACO_API __attribute__((visibility("default")))
#define GUANACO_ABI_VERSION 5

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever the plan file or the layout of the shared counters changes. */
GUANACO_API int guanaco_abi_version(void);
/* 1 when the library was built with io_uring. */
GUANACO_API int guanaco_has_uring(void);
/* What one turn of a spin loop takes on this processor, in picoseconds; measured for about half a millisecond. */
GUANACO_API unsigned long guanaco_spin_turn_ps(void);
/* Size of the shared counter block in bytes. */
GUANACO_API unsigned long guanaco_stats_bytes(void);
/* 1 when the plan file at `path` would be accepted. Else 0, and one line of reason in the `error_bytes` at `error`
 * (cut to fit; may be null when error_bytes is 0). Looks at the plan only, not at the model files. */
GUANACO_API int guanaco_check_plan(const char* path, char* error, unsigned long error_bytes);

/* The simulator: the cache and the policies of the library, without bytes. One thread at a time per handle. */
typedef struct guanaco_sim guanaco_sim;
/* A group is the experts of one MoE layer, in the order of the layers; slots belong to a size class. `top_k` 0: not
 * known. Null, with one line of reason at `error`, when the policy is unknown or the shape makes no sense. */
GUANACO_API guanaco_sim* guanaco_sim_create(const char* policy, uint32_t n_groups, const uint32_t* n_expert,
                                            const uint32_t* size_class, const uint32_t* top_k, uint32_t n_classes,
                                            const uint32_t* n_slots, char* error, unsigned long error_bytes);
GUANACO_API void guanaco_sim_destroy(guanaco_sim* sim);
/* Before the first selection: how often each of the `n` experts of a group is likely to be used a token, 0 to 1. Returns 0;
 * -2 when a number is out of range. */
GUANACO_API int guanaco_sim_prior(guanaco_sim* sim, uint32_t group, const double* use, uint32_t n);
/* Serves one layer's distinct experts; the first `n_transient` belong to a prompt batch only. `rows`: of such a batch, what
 * the router picked for each of its `n_rows` tokens, `n_used` ids each; 0 rows when decoding. Returns how many were not
 * resident; -1 when they are more than the class has slots, -2 when a number is out of range; nothing has changed then.
 * `victims` has room for n; it gets the experts evicted, in order, as group << 16 | expert, `n_victims` their number. */
GUANACO_API int guanaco_sim_serve(guanaco_sim* sim, uint32_t group, const int32_t* experts, uint32_t n,
                                  uint32_t n_transient, const int32_t* rows, uint32_t n_rows, uint32_t n_used,
                                  uint32_t* victims, uint32_t* n_victims);
/* The same for a selection that does not fit: its experts pass through a few slots, which are empty afterwards. What is
 * missing then counts as read. Returns how many that are; -2 when a number is out of range. */
GUANACO_API int guanaco_sim_pass(guanaco_sim* sim, uint32_t group, const int32_t* experts, uint32_t n, uint32_t* victims,
                                 uint32_t* n_victims);
/* Serves a decode trace: ids[token][group][the largest top_k], a negative id is none. `counters` gets hits, misses,
 * evictions, and the nanoseconds spent in the policy and the bookkeeping, all of this call. Returns 0; -1 or -2 as
 * above, after what came before was served; -2 too when no top_k is known. */
GUANACO_API int guanaco_sim_replay(guanaco_sim* sim, const int16_t* ids, uint32_t n_tokens, uint64_t counters[4]);
/* Evictions of hot experts, and of experts that were read again soon (see docs/cache.md), since the creation. */
GUANACO_API void guanaco_sim_evictions(const guanaco_sim* sim, uint64_t* hot, uint64_t* reread);

#ifdef __cplusplus
}
#endif

#endif
