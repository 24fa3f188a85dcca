// A model file that changes while it is loaded: what is an error, what is a warning, and how often it is said.
#include "file_watch.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "bed.h"
#include "check.h"

using guanaco::FileWatch;

namespace {

constexpr uint64_t kSecond = 1000000000;

struct TwoFiles : Bed {
  TwoFiles() {
    file(10000, true);
    file(20000, true);
    std::string reason;
    REQUIRE(open_real(&reason));
  }
};

struct Watched {
  bool look(uint64_t now_ns) {
    error.clear();
    warning.clear();
    return watch.check(now_ns, &error, &warning);
  }
  const std::string& path(size_t file) const { return bed.plan.files[file].path; }

  TwoFiles bed;
  FileWatch watch{bed.plan, bed.files};
  std::string error, warning;
};

}  // namespace

TEST(file_watch_has_nothing_to_say_about_files_that_stay) {
  Watched watched;
  for (uint64_t now = 1; now < 5 * kSecond; now += kSecond / 2) CHECK(watched.look(now));
  CHECK(watched.error.empty() && watched.warning.empty());
}

TEST(file_watch_refuses_a_file_cut_short) {
  Watched watched;
  CHECK(watched.look(1));
  std::filesystem::resize_file(watched.path(1), 5000);
  // At once and every time: the next graph would compute on what is not there.
  for (uint64_t now = 2; now < 5; ++now) {
    CHECK(!watched.look(now));
    CHECK_CONTAINS(watched.error, watched.path(1).c_str());
    CHECK_CONTAINS(watched.error, "cut short or written to");
  }
}

TEST(file_watch_refuses_a_file_written_to) {
  Watched watched;
  const int fd = open(watched.path(0).c_str(), O_WRONLY);
  REQUIRE(fd >= 0);
  const struct timespec times[2] = {{0, UTIME_OMIT}, {12345, 0}};  // as a write would leave it
  CHECK_EQ(futimens(fd, times), 0);
  close(fd);
  CHECK(!watched.look(1));
  CHECK_CONTAINS(watched.error, watched.path(0).c_str());
}

TEST(file_watch_warns_once_of_a_file_replaced_under_its_name) {
  Watched watched;
  CHECK(watched.look(1));
  std::filesystem::rename(watched.bed.dir.write("other", "short"), watched.path(0));
  CHECK(watched.look(2));
  CHECK(watched.warning.empty());  // names are looked at once a second
  CHECK(watched.look(1 + kSecond));
  CHECK(watched.error.empty());
  CHECK_CONTAINS(watched.warning, watched.path(0).c_str());
  CHECK(watched.look(1 + 2 * kSecond));
  CHECK(watched.warning.empty());
  std::filesystem::remove(watched.path(1));
  CHECK(watched.look(1 + 3 * kSecond));
  CHECK_CONTAINS(watched.warning, watched.path(1).c_str());
  CHECK(watched.look(1 + 4 * kSecond));
  CHECK(watched.warning.empty());
}
