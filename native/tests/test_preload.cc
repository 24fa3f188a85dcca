// The built library, preloaded into a process that maps a model and decodes as the engine does.
#ifdef GUANACO_LIBRARY_FILE

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "engine_rig.h"
#include "fake_server.h"
#include "memory_map.h"

using guanaco::kPage;

// argv: the model file. The rig only lends its layout and its graphs; the preloaded library does the rest.
int preload_child(int argc, char** argv) {
  int n_failures = 0;
  const auto expect = [&](bool good, const char* what) {
    if (good) return;
    std::fprintf(stderr, "  preload child: not so: %s\n", what);
    ++n_failures;
  };
  const bool streams = std::getenv("EXPECT_STREAMING") != nullptr;
  expect(argc == 1, "one argument");
  const bool is_clean = std::getenv("LD_PRELOAD") == nullptr && std::getenv("GUANACO_PLAN") == nullptr &&
                        std::getenv("GUANACO_PLAN_PARENT") == nullptr;
  expect(is_clean || !streams, "environment clean");
  EngineRig rig(2, 5);
  const uint64_t nbytes = rig.bed.plan.files[0].size_bytes;
  const int fd = open(argv[0], O_RDONLY | O_CLOEXEC);
  void* at = mmap(nullptr, nbytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
  expect(at != MAP_FAILED, "mapped");
  if (at == MAP_FAILED) return 1;
  char* base = static_cast<char*>(at);
  expect(posix_madvise(base, nbytes, POSIX_MADV_WILLNEED) == 0, "advised");
  const uint64_t inner = guanaco::page_ceil(rig.bed.plan.groups[0].parts[0].offset);
  std::vector<unsigned char> pages(16);
  expect(mincore(base + inner, pages.size() * kPage, pages.data()) == 0, "mincore");
  size_t n_cached = 0;
  for (const unsigned char page : pages) n_cached += page & 1;
  // The kernel passes over a page that somebody holds in that moment.
  expect(streams ? n_cached <= 2 : n_cached == pages.size(), "experts are not cached");
  expect((inode_of(base, kPage) == 0) == streams, "dense is anonymous");
  expect(inode_of(base + inner, 16 * kPage) > 0, "experts are the file's");
  rig.make_weights(base);
  guanaco::Scheduler scheduler;
  int n_asked = 0;
  ggml_backend_sched_set_eval_callback(
      &scheduler, [](guanaco::Tensor*, bool, void* data) { return ++*static_cast<int*>(data) < 0; }, &n_asked);
  TestGraph graph;
  rig.add_layer(&graph, 0, {{1, 2}});
  MoeLayer& last = rig.add_layer(&graph, 1, {{3, 15}});
  for (int round = 0; round < 3; ++round) {
    expect(fake_engine_decode(&scheduler, &graph.graph) == 0, "decoded");
    rig.check_products(graph, scheduler);
  }
  expect(n_asked == 3 * static_cast<int>(graph.graph.nodes.size()), "the user's callback is asked");
  const char* weights = scheduler.products[last.products[2]].weights;
  expect((weights < base || weights >= base + nbytes) == streams, "products read slots");
  // Other mappings go their own way.
  void* plain = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  expect(plain != MAP_FAILED, "anonymous");
  expect(posix_madvise(plain, kPage, POSIX_MADV_RANDOM) == 0, "advised elsewhere");
  expect(posix_madvise(static_cast<char*>(plain) + 1, kPage, POSIX_MADV_RANDOM) != 0, "bad advice refused");
  std::memset(plain, 1, kPage);
  expect(munmap(plain, kPage) == 0, "unmapped");
  void* copy = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);  // not how the loader maps
  expect(copy != MAP_FAILED && inode_of(static_cast<char*>(copy), kPage) > 0, "a private copy stays a file's");
  expect(munmap(copy, nbytes) == 0 && munmap(base, nbytes) == 0, "unmapped");
  expect(inode_of(base, nbytes) == -1, "gone");
  close(fd);
  // Results of others come all the time; the engine by itself would wait until they end.
  const int took_ms = fake::receive(1, 50, 0);
  expect(took_ms < 0 && (took_ms > -4000) == streams, "a wait ends in time");
  const int found_ms = fake::receive(2, 50, 100);
  expect(found_ms >= 100 && found_ms < 2000, "a result is found");
  const int n_drafts = fake::decode_with_drafts(200, 500);
  expect(streams ? n_drafts >= 16 && n_drafts < 100 : n_drafts == 200, "drafts end that do not pay");
  return n_failures;
}

namespace {

int run_child(const std::string& preload, const std::string& plan, const std::string& model, bool streams,
              bool written_for_it = true) {
  const pid_t child = fork();
  if (child < 0) return -1;
  if (child == 0) {
    if (!preload.empty()) setenv("LD_PRELOAD", preload.c_str(), 1);
    if (!plan.empty()) setenv("GUANACO_PLAN", plan.c_str(), 1);
    if (written_for_it) setenv("GUANACO_PLAN_PARENT", std::to_string(getppid()).c_str(), 1);
    if (streams) setenv("EXPECT_STREAMING", "1", 1);
    execl("/proc/self/exe", "guanaco_tests", "--preload-child", model.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

}  // namespace

TEST(preload_streams) {
  EngineRig rig(2, 5);
  Bed& bed = rig.bed;
  bed.dense(0, 0, 4000);
  bed.plan.stats_path = bed.dir.write("stats", std::string(sizeof(guanaco::StatsBlock), '\0'));
  const std::string plan = bed.dir.write("plan", bed.text());
  std::string error;
  // The file was just written, so all of it is cached: the library has to drop that, and nothing may come back.
  REQUIRE(bed.open_real(&error) && fsync(bed.files.fds[0]) == 0);
  CHECK_EQ(run_child(GUANACO_LIBRARY_FILE, plan, bed.plan.files[0].path, true), 0);
  guanaco::Stats stats(bed.plan.stats_path);
  CHECK_EQ(stats->groups_bound.load(), 2);
  CHECK_EQ(stats->unmanaged.load(), 0);
  CHECK_EQ(stats->graphs.load(), 3);
  CHECK_EQ(stats->misses.load(), 4);
  CHECK_EQ(stats->draft_steps.load(), 200);
  CHECK(stats->draft_rests.load() > 100);
  CHECK_EQ(stats->state.load(), static_cast<uint64_t>(guanaco::LoadState::kReady));
}

TEST(preload_without_a_plan_changes_nothing) {
  EngineRig rig(2, 5);
  const std::string& model = rig.bed.plan.files[0].path;
  CHECK_EQ(run_child("", "", model, false), 0);
  CHECK_EQ(run_child(GUANACO_LIBRARY_FILE, "", model, false), 0);
}

// A variable that somebody left in the environment: of another process, or no plan at all.
TEST(preload_with_a_stray_plan_changes_nothing) {
  EngineRig rig(2, 5);
  const std::string& model = rig.bed.plan.files[0].path;
  const std::string good = rig.bed.dir.write("plan", rig.bed.text());
  CHECK_EQ(run_child(GUANACO_LIBRARY_FILE, good, model, false, false), 0);
  CHECK_EQ(run_child(GUANACO_LIBRARY_FILE, rig.bed.dir.path("missing"), model, false, false), 0);
}

TEST(preload_with_a_bad_plan_ends_the_process) {
  EngineRig rig(1, 4);
  const std::string plan = rig.bed.dir.write("plan", rig.bed.text() + "nonsense\n");
  CHECK_EQ(run_child(GUANACO_LIBRARY_FILE, plan, rig.bed.plan.files[0].path, true), 78);
}

TEST(preload_library_functions) {
  void* library = dlopen(GUANACO_LIBRARY_FILE, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  const auto check_plan =
      reinterpret_cast<int (*)(const char*, char*, unsigned long)>(dlsym(library, "guanaco_check_plan"));
  REQUIRE(check_plan != nullptr);
  EngineRig rig(1, 4);
  char error[20] = "before";
  CHECK_EQ(check_plan(rig.bed.dir.write("plan", rig.bed.text()).c_str(), error, sizeof error), 1);
  CHECK_EQ(std::string(error), std::string());
  const std::string bad = rig.bed.dir.write("plan", rig.bed.text() + "nonsense\n");
  CHECK_EQ(check_plan(bad.c_str(), error, sizeof error), 0);
  CHECK_EQ(std::string(error).size(), sizeof error - 1);  // cut to fit
  CHECK_EQ(check_plan(bad.c_str(), nullptr, 0), 0);
  CHECK_EQ(check_plan(rig.bed.dir.path("missing").c_str(), error, 5), 0);
  CHECK_EQ(std::string(error), std::string("cann"));
  dlclose(library);
}

#endif
