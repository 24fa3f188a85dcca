// Opening the planned files, choosing a mode by probe, and reading whole ranges.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "bed.h"
#include "check.h"
#include "scripted_backend.h"

using guanaco::IoMode;
using guanaco::kPage;
using guanaco::OpenFiles;
using guanaco::SelectedIo;

namespace {

bool select(Bed* bed, IoMode wanted, SelectedIo* io, std::string* error) {
  bed->plan.io = wanted;
  for (const int fd : bed->files.fds) close(fd);
  bed->files.fds.clear();
  return bed->open_real(error) && guanaco::select_io(bed->plan, bed->files, io, error);
}

}  // namespace

TEST(open_files_checks_identity) {
  Bed bed;
  bed.file(10000, true);
  std::string error;
  CHECK(bed.open_real(&error));
  CHECK_EQ(bed.files.fds.size(), 1);
  for (int field = 0; field < 4; ++field) {
    guanaco::LoadPlan other = bed.plan;
    guanaco::PlanFile& file = other.files[0];
    if (field == 0) ++file.size_bytes;
    if (field == 1) --file.mtime_ns;
    if (field == 2) ++file.inode;
    if (field == 3) ++file.device;
    OpenFiles files;
    error.clear();
    CHECK(!guanaco::open_files(other, &files, &error));
    CHECK_CONTAINS(error, "changed or replaced");
    CHECK_CONTAINS(error, file.path.c_str());
  }
}

TEST(open_files_names_what_is_missing) {
  Bed bed;
  bed.file(10000, true);
  bed.file(10000, true);
  std::filesystem::remove(bed.plan.files[1].path);
  std::string error;
  CHECK(!bed.open_real(&error));
  CHECK_CONTAINS(error, bed.plan.files[1].path.c_str());
  CHECK_CONTAINS(error, "No such file");
}

TEST(select_io_modes) {
  Bed bed;
  bed.file(5000, true);  // shorter than two pages, ends inside one
  bed.file(100, true);
  SelectedIo io;
  std::string error;
  REQUIRE(select(&bed, IoMode::kAuto, &io, &error));
  const bool direct = bed.files.direct;
  CHECK(direct ? io.mode == IoMode::kUring || io.mode == IoMode::kThreads : io.mode == IoMode::kBuffered);
  REQUIRE(select(&bed, IoMode::kThreads, &io, &error));
  CHECK_EQ(io.mode, direct ? IoMode::kThreads : IoMode::kBuffered);
  REQUIRE(select(&bed, IoMode::kBuffered, &io, &error));
  CHECK_EQ(io.mode, IoMode::kBuffered);
  CHECK(!bed.files.direct);
  REQUIRE(select(&bed, IoMode::kPageCache, &io, &error));
  CHECK_EQ(io.mode, IoMode::kPageCache);
  CHECK(io.backend != nullptr);
  const bool has_uring = direct && guanaco::make_uring_backend(2) != nullptr;
  CHECK_EQ(select(&bed, IoMode::kUring, &io, &error), has_uring);
  if (has_uring) {
    CHECK_EQ(io.mode, IoMode::kUring);
  } else {
    CHECK_CONTAINS(error, "--io auto");
  }
}

TEST(select_io_mode_names) {
  CHECK_CONTAINS(std::string(guanaco::io_mode_name(IoMode::kUring)), "io_uring");
  CHECK_CONTAINS(std::string(guanaco::io_mode_name(IoMode::kThreads)), "O_DIRECT");
  CHECK_CONTAINS(std::string(guanaco::io_mode_name(IoMode::kBuffered)), "buffered");
  CHECK_CONTAINS(std::string(guanaco::io_mode_name(IoMode::kPageCache)), "page cache");
  CHECK_CONTAINS(std::string(guanaco::io_mode_name(IoMode::kAuto)), "unknown");
}

TEST(read_range_in_chunks) {
  Bed bed;
  const uint64_t nbytes = 40 * kPage + 77;
  bed.file(nbytes, true);
  SelectedIo io;
  std::string error;
  REQUIRE(select(&bed, IoMode::kAuto, &io, &error));
  const uint64_t begin = 3 * kPage, room = 38 * kPage;
  char* at = static_cast<char*>(std::aligned_alloc(kPage, room));
  for (const uint64_t chunk : {kPage, 5 * kPage, uint64_t{1} << 20}) {
    std::memset(at, 0, room);
    CHECK(guanaco::read_range(io.backend.get(), bed.files.fds[0], begin, room, nbytes - begin, at, chunk, &error));
    CHECK(std::string(at, nbytes - begin) == pattern(0, begin, nbytes - begin));
  }
  CHECK(!guanaco::read_range(io.backend.get(), bed.files.fds[0], begin, room, nbytes - begin + 1, at, kPage, &error));
  CHECK_CONTAINS(error, "ends early");
  CHECK_EQ(io.backend->in_flight(), 0);
  std::free(at);
}

TEST(read_range_reports_an_error_after_all_reads_ended) {
  Bed bed;
  bed.file(64 * kPage, false);
  bed.open_fake();
  ScriptedBackend backend(bed);
  backend.errors[{0, 2 * kPage}] = 1;
  std::string bytes(8 * kPage, '\0'), error;
  CHECK(!guanaco::read_range(&backend, bed.files.fds[0], 0, 8 * kPage, 8 * kPage, bytes.data(), kPage, &error));
  CHECK_CONTAINS(error, "Input/output error");
  CHECK_EQ(backend.in_flight(), 0);
  CHECK_EQ(backend.started.size(), 8);
}
