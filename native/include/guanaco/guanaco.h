/* C ABI of libguanaco.so. Opened with ctypes by the parent; preloaded into the worker. */
#ifndef GUANACO_GUANACO_H
#define GUANACO_GUANACO_H

#define GUANACO_API __attribute__((visibility("default")))
#define GUANACO_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever the plan file or the layout of the shared counters changes. */
GUANACO_API int guanaco_abi_version(void);
/* 1 when the library was built with io_uring. */
GUANACO_API int guanaco_has_uring(void);
/* Size of the shared counter block in bytes. */
GUANACO_API unsigned long guanaco_stats_bytes(void);
/* 1 when the plan file at `path` would be accepted. Else 0, and one line of reason in the `error_bytes` at `error`
 * (cut to fit; may be null when error_bytes is 0). Looks at the plan only, not at the model files. */
GUANACO_API int guanaco_check_plan(const char* path, char* error, unsigned long error_bytes);

#ifdef __cplusplus
}
#endif

#endif
