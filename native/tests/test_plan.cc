// The plan parser: what it accepts, and what it refuses with a reason.
#include <random>

#include "bed.h"
#include "check.h"

using guanaco::LoadPlan;
using guanaco::parse_plan;

namespace {

// Two files, two size classes, aligned and unaligned slices.
std::string good_plan() {
  Bed bed;
  bed.plan.io = guanaco::IoMode::kThreads;
  bed.plan.staging_bytes = 1u << 20;
  bed.plan.stats_path = "/dev/shm/some name";
  bed.plan.engine = "xllamacpp 1.2 (b3)";
  bed.file(1u << 20, false);
  bed.file(1u << 20, false);
  bed.plan.files[0].path = "/models/with space.gguf";
  bed.plan.files[0].mtime_ns = -5;
  bed.dense(0, 64, 4096);
  bed.dense(1, 0, 100);
  bed.size_class(4, {8192, 8192, 4096});
  bed.size_class(2, {5000, 3000});
  bed.group(0, 0, 8, {{0x2000, 8192, 0}, {0x20020, 8192, 0}, {0x40000, 4096, 1}});
  bed.group(3, 1, 16, {{0x80000, 5000, 1}, {0x100, 3000, 1}});
  return bed.text();
}

std::string error_of(const std::string& text) {
  LoadPlan plan;
  std::string error;
  const bool good = parse_plan(text, &plan, &error);
  CHECK(!good);
  CHECK(!error.empty());
  CHECK(error.find('\n') == std::string::npos);
  return error;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST(plan_good) {
  LoadPlan plan;
  std::string error;
  REQUIRE(parse_plan(good_plan(), &plan, &error));
  CHECK_EQ(plan.io, guanaco::IoMode::kThreads);
  CHECK_EQ(plan.staging_bytes, 1u << 20);
  CHECK_EQ(plan.stats_path, std::string("/dev/shm/some name"));
  CHECK_EQ(plan.engine, std::string("xllamacpp 1.2 (b3)"));
  CHECK(plan.manage);
  CHECK(!plan.testing);
  REQUIRE(plan.files.size() == 2 && plan.dense.size() == 2 && plan.classes.size() == 2 && plan.groups.size() == 2);
  CHECK_EQ(plan.files[0].path, std::string("/models/with space.gguf"));
  CHECK_EQ(plan.files[0].mtime_ns, -5);
  CHECK_EQ(plan.dense[0].offset, 64);
  CHECK_EQ(plan.classes[0].part_offsets.size(), 3);
  CHECK_EQ(plan.groups[1].layer, 3);
  CHECK_EQ(plan.groups[1].top_k, 0);
  CHECK_EQ(plan.groups[1].parts[0].slice_bytes, 5000);
  CHECK_EQ(plan.groups[1].parts[1].tensor_name, std::string("blk.3.ffn_up_exps.weight"));
  CHECK_EQ(plan.arena_bytes(), 4 * plan.classes[0].stride_bytes + 2 * plan.classes[1].stride_bytes);
}

TEST(plan_io_modes) {
  const std::string text = good_plan();
  for (const char* mode : {"auto", "uring", "threads", "buffered", "pagecache"}) {
    LoadPlan plan;
    std::string error;
    CHECK(parse_plan(replaced(text, "io threads", std::string("io ") + mode), &plan, &error));
  }
  CHECK_CONTAINS(error_of(replaced(text, "io threads", "io floppy")), "line 2");
}

TEST(plan_version) {
  CHECK_CONTAINS(error_of(""), "version");
  CHECK_CONTAINS(error_of("guanaco-plan 2\n"), "version");
  CHECK_CONTAINS(error_of("GGUF"), "version");
  CHECK_CONTAINS(error_of(replaced(good_plan(), "guanaco-plan 1", "guanaco-plan 11")), "version");
}

TEST(plan_policies) {
  for (const char* name : {"lru", "lfu", "cycle", "recall", "herd"}) {
    LoadPlan plan;
    std::string error;
    CHECK(parse_plan(replaced(good_plan(), "policy lru", std::string("policy ") + name), &plan, &error));
    CHECK_EQ(plan.policy, std::string(name));
  }
  CHECK_CONTAINS(error_of(replaced(good_plan(), "policy lru", "policy fifo")), "fifo");
}

TEST(plan_pilot_and_overlap) {
  const std::string text = good_plan();
  LoadPlan plan;
  std::string error;
  REQUIRE(parse_plan(text, &plan, &error));
  CHECK_EQ(plan.pilot, guanaco::PilotMode::kOff);
  CHECK_EQ(plan.pilot_mass, 0.9);
  CHECK(plan.overlap);
  CHECK_EQ(plan.threads, 1);
  const std::pair<const char*, guanaco::PilotMode> kModes[] = {{"gate", guanaco::PilotMode::kGate},
                                                               {"transition", guanaco::PilotMode::kTransition},
                                                               {"auto", guanaco::PilotMode::kAuto}};
  for (const auto& [name, mode] : kModes) {
    REQUIRE(parse_plan(replaced(text, "pilot off", std::string("pilot ") + name), &plan, &error));
    CHECK_EQ(plan.pilot, mode);
  }
  REQUIRE(parse_plan(replaced(text, "pilot_mass 0.9", "pilot_mass 1"), &plan, &error));
  CHECK_EQ(plan.pilot_mass, 1.0);
  REQUIRE(parse_plan(replaced(replaced(text, "overlap 1", "overlap 0"), "\nthreads 1", "\nthreads 64"), &plan, &error));
  CHECK(!plan.overlap);
  CHECK_EQ(plan.threads, 64);
  for (const char* line : {"pilot guess", "pilot", "pilot 1", "pilot gate auto"}) error_of(replaced(text, "pilot off", line));
  for (const char* line : {"pilot_mass 0", "pilot_mass -0.5", "pilot_mass 1.01", "pilot_mass nan", "pilot_mass x"}) {
    error_of(replaced(text, "pilot_mass 0.9", line));
  }
  for (const char* line : {"overlap 2", "overlap yes"}) error_of(replaced(text, "overlap 1", line));
  for (const char* line : {"\nthreads 0", "\nthreads -1", "\nthreads 4097"}) {
    error_of(replaced(text, "\nthreads 1", line));
  }
}

TEST(plan_no_file) {
  CHECK_CONTAINS(error_of("guanaco-plan 1\n"), "no model file");
  LoadPlan plan;
  std::string error;
  CHECK(parse_plan("guanaco-plan 1\nmanage 0\n", &plan, &error));
}

TEST(plan_settings_out_of_range) {
  const std::string text = good_plan();
  for (const char* line : {"queue_depth 0", "queue_depth 4097", "queue_depth 99999999999999999999"}) {
    error_of(replaced(text, "queue_depth 64", line));
  }
  for (const char* line : {"io_threads 0", "io_threads 257", "io_threads -1"}) {
    error_of(replaced(text, "io_threads 8", line));
  }
  for (const char* line : {"read_chunk_bytes 0", "read_chunk_bytes 4095", "read_chunk_bytes 6000",
                           "read_chunk_bytes 4294967296", "read_chunk_bytes 18446744073709547520"}) {
    error_of(replaced(text, "read_chunk_bytes 1048576", line));
  }
  error_of(replaced(text, "staging_bytes 1048576", "staging_bytes -1"));
  error_of(replaced(text, "testing 0", "testing 2"));
  error_of(replaced(text, "batch_tokens 16", "batch_tokens 16 17"));
}

TEST(plan_file_index_out_of_range) {
  CHECK_CONTAINS(error_of(replaced(good_plan(), "dense 0 64", "dense 2 64")), "dense range");
  CHECK_CONTAINS(error_of(replaced(good_plan(), "dense 0 64", "dense -1 64")), "cannot read");
  CHECK_CONTAINS(error_of(replaced(good_plan(), "part gate 0", "part gate 2")), "outside its file");
  CHECK_CONTAINS(error_of(replaced(good_plan(), "group 3 1", "group 3 2")), "size class");
}

TEST(plan_dense_outside_file) {
  for (const char* range : {"dense 0 64 1048576", "dense 0 1048576 1", "dense 0 64 0", "dense 0 18446744073709551615 2",
                            "dense 0 64 18446744073709551615", "dense 0 64 18446744073709551616"}) {
    error_of(replaced(good_plan(), "dense 0 64 4096", range));
  }
}

TEST(plan_slice_outside_file) {
  // 8 experts of 8192 bytes end at 0x2000 + 65536; move them to just fit, then one byte further.
  const uint64_t last = (1u << 20) - 8 * 8192;
  LoadPlan plan;
  std::string error;
  const std::string text = good_plan();
  CHECK(parse_plan(replaced(text, "part gate 0 8192", "part gate 0 " + std::to_string(last)), &plan, &error));
  CHECK_CONTAINS(error_of(replaced(text, "part gate 0 8192", "part gate 0 " + std::to_string(last + 1))), "outside");
  CHECK_CONTAINS(error_of(replaced(text, "part gate 0 8192 8192", "part gate 0 8192 0")), "outside");
}

TEST(plan_slice_product_overflows) {
  // 2^48 + 1 bytes times 65536 experts is 65536 modulo 2^64, and fits the file.
  std::string text = replaced(good_plan(), "group 3 1 16", "group 3 1 65536");
  text = replaced(text, "part gate 1 524288 5000", "part gate 1 0 281474976710657");
  text = replaced(text, "class 2 20480 2 0 12288", "class 1 562949953421312 2 0 562949953400832");
  CHECK_CONTAINS(error_of(text), "ffn_gate_exps.weight lies outside its file");
}

TEST(plan_slot_too_small) {
  const std::string text = good_plan();
  CHECK_CONTAINS(error_of(replaced(text, "class 4 32768", "class 4 28672")), "no room");
  CHECK_CONTAINS(error_of(replaced(text, "3 0 12288 24576", "3 0 8192 24576")), "no room");
  CHECK_CONTAINS(error_of(replaced(text, "3 0 12288 24576", "3 0 12289 24576")), "no room");
  // A part that begins so far out that its end wraps round.
  CHECK_CONTAINS(error_of(replaced(text, "3 0 12288 24576", "3 0 12288 18446744073709547520")), "no room");
}

TEST(plan_class_out_of_range) {
  const std::string text = good_plan();
  for (const char* line : {"class 0 32768", "class 4 0", "class 4 32769", "class 4294967295 32768",
                           "class 4 1125899906842624", "class 16777216 1125899906838528"}) {
    error_of(replaced(text, "class 4 32768", line));
  }
  error_of(replaced(text, "class 4 32768 3", "class 4 32768 9"));
  error_of(replaced(text, "class 4 32768 3", "class 4 32768 0"));
  CHECK_CONTAINS(error_of(replaced(text, "class 4 32768 3 0 12288 24576", "class 4 32768 2 0 12288")),
                 "number of parts");
}

TEST(plan_group_out_of_range) {
  const std::string text = good_plan();
  error_of(replaced(text, "group 0 0 8 1", "group 0 0 0 1"));
  error_of(replaced(text, "group 0 0 8 1", "group 0 0 65537 1"));
  error_of(replaced(text, "group 0 0 8 1", "group 0 0 8 7"));
  error_of(replaced(text, "group 0 0 8 1", "group 0 0 8"));
  error_of(replaced(text, "group 0 0 8 1", "group 0 0 8 1 x"));
  error_of(replaced(text, "group 0 0 8 1", "group 0 0 8 1 2 3"));
  CHECK_CONTAINS(error_of(replaced(text, "group 0 0 8 1", "group 0 0 8 1 9")), "fewer experts");
  LoadPlan plan;
  std::string error;
  REQUIRE(parse_plan(replaced(text, "group 0 0 8 1", "group 0 0 8 1 2"), &plan, &error));
  CHECK_EQ(plan.groups[0].top_k, 2);
  CHECK_CONTAINS(error_of("guanaco-plan 1\npart gate 0 0 1 x\n"), "line 2");
}

TEST(plan_garbage_lines) {
  const std::string text = good_plan();
  for (const char* line : {"nonsense", "io", "io \xff\xfe", "file 1 2", "file 1 2 3 4", "file 1 2 3 4 ", "dense",
                           "dense a b c", "dense 0 64", "dense 0 0x40 4096", "dense 0 64 4096 1", "class", "group",
                           "part", "stats", "replay ", "queue_depth 1e3", "manage yes"}) {
    const std::string error = error_of(text + line + "\n");
    CHECK_CONTAINS(error, "cannot read");
  }
  error_of(text + std::string(1000000, 'x') + "\n");
}

TEST(plan_blank_lines_are_nothing) {
  LoadPlan plan;
  std::string error;
  CHECK(parse_plan(replaced(good_plan(), "policy lru\n", "\n  \npolicy lru\n\n"), &plan, &error));
}

// Whatever is done to a plan, it is refused with a reason or still consistent.
TEST(plan_mutations) {
  const std::string good = good_plan();
  std::mt19937 random(20240229);
  const auto below = [&](size_t n) { return static_cast<size_t>(random()) % n; };
  static const char* const kNumbers[] = {
      "0", "-1", "1", "4096", "4294967295", "4294967296", "1125899906842623", "18446744073709551615", "1e9"};
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    const size_t n_edits = 1 + below(4);
    for (size_t edit = 0; edit < n_edits && !text.empty(); ++edit) {
      const size_t at = below(text.size());
      switch (below(6)) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, 1 + below(40)); break;
        case 2: text.insert(at, text.substr(below(text.size()), below(60))); break;
        case 3: text.resize(at); break;
        default: {  // another number in the place of one
          const size_t begin = text.find_first_of("0123456789", at);
          if (begin == std::string::npos) break;
          const size_t end = text.find_first_not_of("0123456789", begin);
          text.replace(begin, end - begin, kNumbers[below(sizeof kNumbers / sizeof *kNumbers)]);
        }
      }
    }
    LoadPlan plan;
    std::string error;
    if (!parse_plan(text, &plan, &error)) {
      CHECK(!error.empty());
      continue;
    }
    ++accepted;
    unsigned __int128 arena = 0;
    for (const auto& cls : plan.classes) arena += static_cast<unsigned __int128>(cls.slots) * cls.stride_bytes;
    CHECK(arena == plan.arena_bytes());
    for (const auto& range : plan.dense) {
      CHECK(range.nbytes <= plan.files.at(range.file).size_bytes - range.offset);
    }
    for (const auto& group : plan.groups) {
      const auto& cls = plan.classes.at(group.size_class);
      for (size_t i = 0; i < group.parts.size(); ++i) {
        const auto& part = group.parts[i];
        const unsigned __int128 end = static_cast<unsigned __int128>(part.slice_bytes) * group.n_expert + part.offset;
        CHECK(end <= plan.files.at(part.file).size_bytes);
        const uint64_t room = (i + 1 < cls.part_offsets.size() ? cls.part_offsets[i + 1] : cls.stride_bytes);
        CHECK(room > cls.part_offsets[i] && room - cls.part_offsets[i] >= part.slice_bytes + guanaco::kPage);
      }
    }
  }
  CHECK(accepted > 50 && accepted < 2500);
}

TEST(plan_from_disk) {
  TempDir dir;
  LoadPlan plan;
  std::string error;
  CHECK(guanaco::read_plan(dir.write("good", good_plan()).c_str(), &plan, &error));
  CHECK_EQ(plan.groups.size(), 2);
  LoadPlan other;
  CHECK(!guanaco::read_plan(dir.path("missing").c_str(), &other, &error));
  CHECK_CONTAINS(error, "missing");
  CHECK(!guanaco::read_plan(dir.path("").c_str(), &other, &error));
  const std::string big = dir.write("big", "guanaco-plan 1\n" + std::string(65u << 20, '\n'));
  CHECK(!guanaco::read_plan(big.c_str(), &other, &error));
  CHECK_CONTAINS(error, "too large");
}
