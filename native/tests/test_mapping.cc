// Mappings of real files: what becomes anonymous, what stays, and what an address shows after pieces are unmapped.
#include <sys/mman.h>
#include <unistd.h>

#include "bed.h"
#include "check.h"
#include "mapping.h"
#include "memory_map.h"

using guanaco::kPage;
using guanaco::Mappings;
using guanaco::raw_mmap;
using guanaco::raw_munmap;

namespace {

// Header | dense | experts | dense | experts | dense up to the end, none of it on a page's edge.
constexpr uint64_t kFileBytes = 100 * kPage + 333;
constexpr uint64_t kDense1 = kPage + 100, kDense1Bytes = 5 * kPage;
constexpr uint64_t kExperts1 = kDense1 + kDense1Bytes, kSlice1 = 2 * kPage + 32;
constexpr uint64_t kDense2 = kExperts1 + 16 * kSlice1, kDense2Bytes = 50;
constexpr uint64_t kExperts2 = kDense2 + 64, kSlice2 = 3 * kPage;
constexpr uint64_t kDense3 = kExperts2 + 16 * kSlice2;

struct MappingRig {
  MappingRig() {
    bed.file(kFileBytes, true);
    bed.dense(0, kDense1, kDense1Bytes);
    bed.dense(0, kDense2, kDense2Bytes);
    bed.dense(0, kDense3, kFileBytes - kDense3);
    bed.size_class(4, {kSlice1, kSlice2});
    bed.group(0, 0, 16, {{kExperts1, kSlice1}, {kExperts2, kSlice2}});
    std::string error;
    REQUIRE(bed.open_real(&error) && guanaco::select_io(bed.plan, bed.files, &io, &error));
  }
  ~MappingRig() {
    if (base != nullptr) raw_munmap(base, kFileBytes);
  }
  void map() {
    void* at = raw_mmap(nullptr, kFileBytes, PROT_READ, MAP_SHARED, bed.files.fds[0], 0);
    REQUIRE(at != MAP_FAILED);
    base = static_cast<char*>(at);
  }
  void adopt() {
    map();
    std::string error;
    REQUIRE(mappings.adopt(0, base, kFileBytes, bed.files, io.backend.get(), &error));
  }
  uint64_t offset_at(uint64_t offset) const {
    uint32_t file = 9;
    uint64_t found = 0;
    if (!mappings.locate(base + offset, &file, &found)) return ~uint64_t{0};
    CHECK_EQ(file, 0);
    return found;
  }

  Bed bed;
  guanaco::Stats stats{""};
  guanaco::SelectedIo io;
  Mappings mappings{bed.plan, &stats};
  char* base = nullptr;
};

}  // namespace

TEST(mapping_shows_the_same_bytes) {
  MappingRig rig;
  rig.adopt();
  CHECK(std::string(rig.base, kFileBytes) == pattern(0, 0, kFileBytes));
}

TEST(mapping_dense_is_anonymous_and_experts_are_not) {
  MappingRig rig;
  rig.adopt();
  const int64_t inode = static_cast<int64_t>(rig.bed.plan.files[0].inode);
  const auto pages = [&](uint64_t begin, uint64_t end) {
    return inode_of(rig.base + guanaco::page_floor(begin), guanaco::page_ceil(end) - guanaco::page_floor(begin));
  };
  CHECK_EQ(pages(0, 1), inode);
  CHECK_EQ(pages(kDense1, kDense1 + kDense1Bytes), 0);
  CHECK_EQ(pages(kDense2, kDense2 + kDense2Bytes), 0);
  CHECK_EQ(pages(kDense3, kFileBytes), 0);
  // Experts, but for the pages they share with a dense neighbour.
  CHECK_EQ(inode_of(rig.base + guanaco::page_ceil(kExperts1), 16 * kSlice1 - 2 * kPage), inode);
  CHECK_EQ(inode_of(rig.base + guanaco::page_ceil(kExperts2), 16 * kSlice2 - 2 * kPage), inode);
  CHECK_EQ(permissions_of(rig.base + kDense1), std::string("r--p"));
  CHECK(rig.stats->dense_bytes_read.load() >= kDense1Bytes + kDense2Bytes + kFileBytes - kDense3);
  CHECK(rig.stats->dense_bytes_read.load() < kDense1Bytes + kDense2Bytes + kFileBytes - kDense3 + 6 * kPage);
}

TEST(mapping_locates) {
  MappingRig rig;
  rig.adopt();
  CHECK_EQ(rig.offset_at(0), 0);
  CHECK_EQ(rig.offset_at(kExperts2 + 5), kExperts2 + 5);
  CHECK_EQ(rig.offset_at(kFileBytes - 1), kFileBytes - 1);
  CHECK(!rig.mappings.contains(rig.base + kFileBytes));
  CHECK(!rig.mappings.contains(rig.base - 1));
  CHECK(!rig.mappings.contains(nullptr));
  CHECK(!rig.mappings.contains(&rig));
  CHECK(rig.mappings.address_of(0, kDense2) == rig.base + kDense2);
  CHECK(rig.mappings.address_of(0, kFileBytes) == nullptr);
  CHECK(rig.mappings.address_of(1, 0) == nullptr);
}

TEST(mapping_unmap_ends_then_all) {
  MappingRig rig;
  rig.adopt();
  const auto unmap = [&](uint64_t begin, uint64_t nbytes) {
    rig.mappings.unmapped(rig.base + begin, nbytes);
    CHECK_EQ(raw_munmap(rig.base + begin, nbytes), 0);
  };
  // As the loader does: whole pages before the first tensor and behind the last one, then what is left of the file.
  unmap(0, kPage);
  CHECK(!rig.mappings.contains(rig.base + kPage - 1));
  CHECK_EQ(rig.offset_at(kPage), kPage);
  const uint64_t cut = guanaco::page_ceil(kDense3 + 2 * kPage), last_page = guanaco::page_floor(kFileBytes);
  unmap(cut, last_page - cut);
  CHECK_EQ(rig.offset_at(cut - 1), cut - 1);
  CHECK(!rig.mappings.contains(rig.base + cut));
  CHECK(!rig.mappings.contains(rig.base + last_page - 1));
  CHECK(rig.mappings.address_of(0, cut) == nullptr);
  CHECK_EQ(rig.offset_at(last_page), last_page);  // the last part of a page stayed
  CHECK(std::string(rig.base + kDense1, kDense2 - kDense1) == pattern(0, kDense1, kDense2 - kDense1));
  unmap(kPage, cut - kPage);
  CHECK(!rig.mappings.contains(rig.base + kExperts1));
  unmap(last_page, kFileBytes - last_page);
  CHECK(!rig.mappings.contains(rig.base + last_page));
  rig.base = nullptr;
}

TEST(mapping_unmap_more_than_the_file) {
  MappingRig rig;
  rig.adopt();
  rig.mappings.unmapped(rig.base - kPage, kPage);
  rig.mappings.unmapped(rig.base + guanaco::page_ceil(kFileBytes), kPage);
  CHECK_EQ(rig.offset_at(0), 0);
  CHECK_EQ(rig.offset_at(kFileBytes - 1), kFileBytes - 1);
  rig.mappings.unmapped(rig.base - kPage, kFileBytes + 3 * kPage);
  CHECK(!rig.mappings.contains(rig.base));
}

TEST(mapping_two_of_one_file) {
  MappingRig rig;
  rig.adopt();
  char* const first = rig.base;
  rig.adopt();
  char* const second = rig.base;
  uint32_t file = 0;
  uint64_t offset = 0;
  CHECK(rig.mappings.locate(first + kExperts1, &file, &offset));
  CHECK_EQ(offset, kExperts1);
  CHECK(rig.mappings.locate(second + kExperts2, &file, &offset));
  CHECK_EQ(offset, kExperts2);
  rig.mappings.unmapped(first, kFileBytes);
  raw_munmap(first, kFileBytes);
  CHECK(rig.mappings.address_of(0, kExperts1) == second + kExperts1);
}

TEST(mapping_planned_files_only) {
  MappingRig rig;
  CHECK_EQ(rig.mappings.planned_file(rig.bed.files.fds[0]), 0);
  CHECK_EQ(rig.mappings.planned_file(-1), -1);
  CHECK_EQ(rig.mappings.planned_file(99999), -1);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  CHECK_EQ(rig.mappings.planned_file(ends[0]), -1);
  close(ends[0]);
  close(ends[1]);
  Bed other;
  other.file(kPage, true);
  std::string error;
  REQUIRE(other.open_real(&error));
  CHECK_EQ(rig.mappings.planned_file(other.files.fds[0]), -1);
}

TEST(mapping_that_is_only_noted) {
  MappingRig rig;
  rig.map();
  rig.mappings.note(0, rig.base, kFileBytes);
  CHECK_EQ(rig.offset_at(kExperts1), kExperts1);
  CHECK_EQ(inode_of(rig.base, kFileBytes), static_cast<int64_t>(rig.bed.plan.files[0].inode));
  CHECK_EQ(rig.stats->dense_bytes_read.load(), 0);
}

TEST(mapping_of_a_file_that_became_shorter) {
  MappingRig rig;
  rig.map();
  REQUIRE(truncate(rig.bed.plan.files[0].path.c_str(), kDense3 + 10) == 0);
  std::string error;
  CHECK(!rig.mappings.adopt(0, rig.base, kFileBytes, rig.bed.files, rig.io.backend.get(), &error));
  CHECK_CONTAINS(error, "reading dense weights of");
  CHECK_CONTAINS(error, "the file ends early");
  CHECK(!rig.mappings.contains(rig.base));
}
