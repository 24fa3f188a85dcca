// One-line messages on stderr, in the form users of the original know.
#pragma once

#include <cstdio>

#define GUANACO_LOG(...)                          \
  do {                                            \
    std::fprintf(stderr, "[Guanaco Storage] ");   \
    std::fprintf(stderr, __VA_ARGS__);            \
    std::fputc('\n', stderr);                     \
  } while (0)
