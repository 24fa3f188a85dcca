#include "bed.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <stdexcept>

using guanaco::ExpertGroup;
using guanaco::kPage;
using guanaco::page_ceil;
using guanaco::PlanFile;
using guanaco::SizeClass;

uint8_t pattern_byte(uint64_t file, uint64_t offset) {
  uint64_t word = (offset / 8 + (file << 40)) * 0x9e3779b97f4a7c15ull;
  word ^= word >> 29;
  word *= 0xbf58476d1ce4e5b9ull;
  word ^= word >> 32;
  return static_cast<uint8_t>(word >> (offset % 8 * 8));
}

std::string pattern(uint64_t file, uint64_t offset, uint64_t nbytes) {
  std::string bytes(nbytes, '\0');
  for (uint64_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<char>(pattern_byte(file, offset + i));
  return bytes;
}

int cached_pages(int fd, uint64_t offset, uint64_t nbytes) {
  void* at = mmap(nullptr, nbytes, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) throw std::runtime_error("cannot map a test file");
  std::vector<unsigned char> resident(page_ceil(nbytes) / kPage);
  const int rc = mincore(at, nbytes, resident.data());
  munmap(at, nbytes);
  if (rc != 0) throw std::runtime_error("mincore() failed on a test file");
  return static_cast<int>(std::count_if(resident.begin(), resident.end(), [](unsigned char page) { return page & 1; }));
}

bool drop_cached(int fd, uint64_t nbytes) {
  for (int attempt = 0; attempt < 200; ++attempt) {
    if (attempt > 0) usleep(10'000);
    if (fsync(fd) != 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0) return false;
    if (cached_pages(fd, 0, nbytes) == 0) return true;
  }
  return false;
}

TempDir::TempDir() {
  // Not in /tmp when it is a RAM disk: direct reads need a file system with a block device.
  const char* chosen = std::getenv("TMPDIR");
  std::string name = std::string(chosen == nullptr ? "/var/tmp" : chosen) + "/guanaco-native-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a directory like " + name);
  root_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

std::string TempDir::write(const std::string& name, const std::string& content) const {
  const std::string at = path(name);
  std::FILE* file = std::fopen(at.c_str(), "we");
  const bool good = file != nullptr && std::fwrite(content.data(), 1, content.size(), file) == content.size();
  if (file == nullptr || std::fclose(file) != 0 || !good) throw std::runtime_error("cannot write " + at);
  return at;
}

std::string TempDir::write_pattern(const std::string& name, uint64_t file, uint64_t nbytes) const {
  return write(name, pattern(file, 0, nbytes));
}

uint32_t Bed::file(uint64_t nbytes, bool real) {
  const uint32_t index = static_cast<uint32_t>(plan.files.size());
  PlanFile file;
  file.size_bytes = nbytes;
  file.path = dir.path("model-" + std::to_string(index) + ".gguf");
  if (real) {
    dir.write_pattern("model-" + std::to_string(index) + ".gguf", index, nbytes);
    struct stat info {};
    if (stat(file.path.c_str(), &info) != 0) throw std::runtime_error("cannot stat " + file.path);
    file.device = info.st_dev;
    file.inode = info.st_ino;
    file.mtime_ns = info.st_mtim.tv_sec * int64_t{1000000000} + info.st_mtim.tv_nsec;
  }
  plan.files.push_back(file);
  return index;
}

uint32_t Bed::size_class(uint32_t slots, std::initializer_list<uint64_t> slice_bytes) {
  SizeClass result;
  result.slots = slots;
  for (const uint64_t nbytes : slice_bytes) {
    result.part_offsets.push_back(result.stride_bytes);
    result.stride_bytes += page_ceil(nbytes) + kPage;
  }
  plan.classes.push_back(result);
  return static_cast<uint32_t>(plan.classes.size() - 1);
}

uint32_t Bed::group(uint32_t layer, uint32_t size_class, uint32_t n_expert, std::initializer_list<Part> parts) {
  static const char* const kRoles[] = {"gate", "up", "down", "extra"};
  ExpertGroup result;
  result.layer = layer;
  result.size_class = size_class;
  result.n_expert = n_expert;
  for (const Part& part : parts) {
    const char* role = kRoles[result.parts.size() % 4];
    result.parts.push_back({role, part.file, part.offset, part.slice_bytes,
                            "blk." + std::to_string(layer) + ".ffn_" + role + "_exps.weight"});
  }
  plan.groups.push_back(result);
  return static_cast<uint32_t>(plan.groups.size() - 1);
}

void Bed::open_fake() {
  for (size_t i = 0; i < plan.files.size(); ++i) files.fds.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  files.direct = true;
}

std::string Bed::slice(uint32_t group, uint32_t part, int32_t expert) const {
  const guanaco::ExpertPart& info = plan.groups[group].parts[part];
  return pattern(info.file, info.offset + static_cast<uint64_t>(expert) * info.slice_bytes, info.slice_bytes);
}

std::string Bed::text() const {
  static const char* const kModes[] = {"auto", "uring", "threads", "buffered", "pagecache"};
  static const char* const kPilots[] = {"off", "gate", "transition", "auto"};
  std::ostringstream out;
  out << "guanaco-plan 1\nio " << kModes[static_cast<int>(plan.io)] << "\nio_threads " << plan.io_threads
      << "\nqueue_depth " << plan.queue_depth << "\nread_chunk_bytes " << plan.read_chunk_bytes << "\nstaging_bytes "
      << plan.staging_bytes << "\nbatch_tokens " << plan.batch_tokens << "\ntesting " << plan.testing << "\nmanage "
      << plan.manage << "\npolicy " << plan.policy << "\npilot " << kPilots[static_cast<int>(plan.pilot)] << "\npilot_mass "
      << plan.pilot_mass << "\noverlap " << plan.overlap << "\nthreads " << plan.threads << "\n";
  if (!plan.stats_path.empty()) out << "stats " << plan.stats_path << "\n";
  if (!plan.replay_path.empty()) out << "replay " << plan.replay_path << "\n";
  if (!plan.record_path.empty()) out << "record " << plan.record_path << "\n";
  if (!plan.heat_path.empty()) out << "heat " << plan.heat_path << "\n";
  if (!plan.engine.empty()) out << "engine " << plan.engine << "\n";
  for (const PlanFile& file : plan.files) {
    out << "file " << file.device << " " << file.inode << " " << file.size_bytes << " " << file.mtime_ns << " "
        << file.path << "\n";
  }
  for (const auto& range : plan.dense) {
    out << "dense " << range.file << " " << range.offset << " " << range.nbytes << "\n";
  }
  for (const SizeClass& cls : plan.classes) {
    out << "class " << cls.slots << " " << cls.stride_bytes << " " << cls.part_offsets.size();
    for (const uint64_t offset : cls.part_offsets) out << " " << offset;
    out << "\n";
  }
  for (const ExpertGroup& group : plan.groups) {
    out << "group " << group.layer << " " << group.size_class << " " << group.n_expert << " " << group.expected;
    if (group.top_k != 0) out << " " << group.top_k;
    out << "\n";
    for (const auto& part : group.parts) {
      out << "part " << part.role << " " << part.file << " " << part.offset << " " << part.slice_bytes << " "
          << part.tensor_name << "\n";
    }
    if (!group.prior.empty()) {
      out << "prior " << &group - plan.groups.data();
      for (const double use : group.prior) out << " " << use;
      out << "\n";
    }
  }
  return out.str();
}
