// Runs the native tests: `guanaco_tests [part of a name]`. Exit code 1 when one failed or none matched.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "check.h"

namespace {

constexpr unsigned kSecondsPerTest = 120;  // a wait that never ends is a failure too

const char* g_current = "";
int g_failures = 0;

void on_alarm(int) {
  const auto say = [](const char* text) {
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) _exit(2);
  };
  say("FAILED ");
  say(g_current);
  say(": still running, given up\n");
  _exit(1);
}

}  // namespace

namespace check {

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

void report(const char* file, int line, const std::string& what) {
  const char* name = std::strrchr(file, '/');
  std::fprintf(stderr, "  %s:%d: %s\n", name == nullptr ? file : name + 1, line, what.c_str());
  ++g_failures;
}

}  // namespace check

#ifdef GUANACO_LIBRARY_FILE
int preload_child(int argc, char** argv);  // test_preload.cc
#endif

int main(int argc, char** argv) {
#ifdef GUANACO_LIBRARY_FILE
  if (argc > 1 && std::strcmp(argv[1], "--preload-child") == 0) return preload_child(argc - 2, argv + 2);
#endif
  const char* filter = argc > 1 ? argv[1] : "";
  signal(SIGALRM, on_alarm);
  int passed = 0, failed = 0, skipped = 0;
  for (const check::Test& test : check::tests()) {
    if (std::strstr(test.name, filter) == nullptr) continue;
    g_current = test.name;
    g_failures = 0;
    alarm(kSecondsPerTest);
    try {
      test.body();
    } catch (const check::Abandoned&) {
    } catch (const check::Skipped& skip) {
      std::printf("skipped %s: %s\n", test.name, skip.reason.c_str());
      ++skipped;
      continue;
    } catch (const std::exception& problem) {
      check::report(__FILE__, __LINE__, std::string("exception: ") + problem.what());
    }
    ++(g_failures == 0 ? passed : failed);
    if (g_failures > 0) std::fprintf(stderr, "FAILED %s\n", test.name);
  }
  std::printf("%d passed, %d failed", passed, failed);
  if (skipped > 0) std::printf(", %d skipped", skipped);
  std::printf("\n");
  return failed > 0 || passed == 0 ? 1 : 0;
}
