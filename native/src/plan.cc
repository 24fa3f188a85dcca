#include "plan.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <sstream>

#include "policy.h"

namespace guanaco {

namespace {

constexpr size_t kMaxPlanBytes = 64u << 20;
constexpr uint64_t kMaxOffset = uint64_t{1} << 50;
constexpr uint64_t kMaxChunkBytes = 1u << 30;
constexpr uint32_t kMaxSlots = 1u << 24;
constexpr uint32_t kMaxThreads = 4096;
constexpr size_t kMaxGroups = 1u << 15;

bool parse_io(const std::string& text, IoMode* io) {
  static const struct {
    const char* name;
    IoMode mode;
  } kNames[] = {{"auto", IoMode::kAuto},
                {"uring", IoMode::kUring},
                {"threads", IoMode::kThreads},
                {"buffered", IoMode::kBuffered},
                {"pagecache", IoMode::kPageCache}};
  for (const auto& entry : kNames) {
    if (text == entry.name) {
      *io = entry.mode;
      return true;
    }
  }
  return false;
}

bool parse_pilot(const std::string& text, PilotMode* mode) {
  static const std::pair<const char*, PilotMode> kNames[] = {{"off", PilotMode::kOff},
                                                             {"gate", PilotMode::kGate},
                                                             {"transition", PilotMode::kTransition},
                                                             {"auto", PilotMode::kAuto}};
  for (const auto& [name, value] : kNames) {
    if (text == name) {
      *mode = value;
      return true;
    }
  }
  return false;
}

bool read_share(std::istringstream& in, double* share) { return (in >> *share) && *share > 0 && *share <= 1; }

// Uses a token of each expert of a group, up to the end of the line.
bool read_prior(std::istringstream& in, ExpertGroup* group) {
  group->prior.clear();
  double use = 0;
  while (in >> use) {
    if (!(use >= 0 && use <= 1) || group->prior.size() == group->n_expert) return false;
    group->prior.push_back(use);
  }
  in.clear(in.rdstate() & ~std::ios::failbit);
  return group->prior.size() == group->n_expert;
}

// The rest of the line, for paths and names that may hold spaces.
std::string rest_of(std::istringstream& in) {
  std::string text;
  std::getline(in >> std::ws, text);
  return text;
}

// Streams take "-1" for an unsigned number and wrap it round; a plan must not.
template <typename Number>
bool read_number(std::istringstream& in, Number* number) {
  std::string word;
  if (!(in >> word)) return false;
  const char* const end = word.data() + word.size();
  const auto [stop, problem] = std::from_chars(word.data(), end, *number);
  return problem == std::errc() && stop == end;
}

template <typename... Numbers>
bool read_numbers(std::istringstream& in, Numbers*... numbers) {
  return (read_number(in, numbers) && ...);
}

bool read_flag(std::istringstream& in, bool* flag) {
  uint32_t number = 0;
  if (!read_number(in, &number) || number > 1) return false;
  *flag = number == 1;
  return true;
}

bool parse_line(const std::string& key, std::istringstream& in, LoadPlan* plan) {
  if (key == "io") {
    std::string mode;
    return (in >> mode) && parse_io(mode, &plan->io);
  }
  if (key == "io_threads") return read_number(in, &plan->io_threads);
  if (key == "queue_depth") return read_number(in, &plan->queue_depth);
  if (key == "read_chunk_bytes") return read_number(in, &plan->read_chunk_bytes);
  if (key == "staging_bytes") return read_number(in, &plan->staging_bytes);
  if (key == "batch_tokens") return read_number(in, &plan->batch_tokens);
  if (key == "testing") return read_flag(in, &plan->testing);
  if (key == "manage") return read_flag(in, &plan->manage);
  if (key == "policy") return static_cast<bool>(in >> plan->policy);
  if (key == "pilot") {
    std::string mode;
    return (in >> mode) && parse_pilot(mode, &plan->pilot);
  }
  if (key == "pilot_mass") return read_share(in, &plan->pilot_mass);
  if (key == "overlap") return read_flag(in, &plan->overlap);
  if (key == "draft_always") return read_flag(in, &plan->draft_always);
  if (key == "threads") return read_number(in, &plan->threads) && plan->threads > 0 && plan->threads <= kMaxThreads;
  if (key == "batch_threads") return read_number(in, &plan->batch_threads) && plan->batch_threads <= kMaxThreads;
  if (key == "stats") return !(plan->stats_path = rest_of(in)).empty();
  if (key == "replay") return !(plan->replay_path = rest_of(in)).empty();
  if (key == "record") return !(plan->record_path = rest_of(in)).empty();
  if (key == "heat") return !(plan->heat_path = rest_of(in)).empty();
  if (key == "engine") return !(plan->engine = rest_of(in)).empty();
  if (key == "file") {
    PlanFile file;
    if (!read_numbers(in, &file.device, &file.inode, &file.size_bytes, &file.mtime_ns)) return false;
    file.path = rest_of(in);
    plan->files.push_back(file);
    return !file.path.empty();
  }
  if (key == "dense") {
    DenseRange range;
    if (!read_numbers(in, &range.file, &range.offset, &range.nbytes)) return false;
    plan->dense.push_back(range);
    return true;
  }
  if (key == "class") {
    SizeClass size_class;
    size_t n_parts = 0;
    if (!read_numbers(in, &size_class.slots, &size_class.stride_bytes, &n_parts) || n_parts == 0 || n_parts > 8) {
      return false;
    }
    for (size_t i = 0; i < n_parts; ++i) {
      uint64_t offset = 0;
      if (!read_number(in, &offset)) return false;
      size_class.part_offsets.push_back(offset);
    }
    plan->classes.push_back(size_class);
    return true;
  }
  if (key == "group") {
    ExpertGroup group;
    if (!read_numbers(in, &group.layer, &group.size_class, &group.n_expert) || !read_flag(in, &group.expected)) {
      return false;
    }
    if (!(in >> std::ws).eof() && !read_number(in, &group.top_k)) return false;
    plan->groups.push_back(group);
    return true;
  }
  if (key == "prior") {
    uint32_t group = 0;
    return read_number(in, &group) && group < plan->groups.size() && read_prior(in, &plan->groups[group]);
  }
  if (key == "part") {
    ExpertPart part;
    if (plan->groups.empty() || !(in >> part.role) ||
        !read_numbers(in, &part.file, &part.offset, &part.slice_bytes)) {
      return false;
    }
    part.tensor_name = rest_of(in);
    plan->groups.back().parts.push_back(part);
    return true;
  }
  return false;
}

bool in_file(const LoadPlan& plan, uint32_t file, uint64_t offset, uint64_t nbytes) {
  return file < plan.files.size() && offset < kMaxOffset && nbytes > 0 && nbytes < kMaxOffset &&
         offset + nbytes <= plan.files[file].size_bytes;
}

bool check_group(const LoadPlan& plan, const ExpertGroup& group, std::string* error) {
  const std::string where = "expert group of layer " + std::to_string(group.layer);
  if (group.size_class >= plan.classes.size() || group.n_expert == 0 || group.n_expert > 65536) {
    *error = where + " has no size class or no experts";
    return false;
  }
  if (group.top_k > group.n_expert) {
    *error = where + " has fewer experts than a token uses";
    return false;
  }
  const SizeClass& size_class = plan.classes[group.size_class];
  if (group.parts.size() != size_class.part_offsets.size()) {
    *error = where + " and its size class differ in the number of parts";
    return false;
  }
  for (size_t i = 0; i < group.parts.size(); ++i) {
    const ExpertPart& part = group.parts[i];
    // First the single slice: the product with the number of experts must not wrap round.
    if (part.slice_bytes >= kMaxOffset / group.n_expert ||
        !in_file(plan, part.file, part.offset, part.slice_bytes * group.n_expert)) {
      *error = where + ": " + part.tensor_name + " lies outside its file";
      return false;
    }
    const uint64_t room_end = i + 1 < size_class.part_offsets.size() ? size_class.part_offsets[i + 1]
                                                                     : size_class.stride_bytes;
    const uint64_t begin = size_class.part_offsets[i];
    if (begin % kPage != 0 || begin >= kMaxOffset || begin + page_ceil(part.slice_bytes) + kPage > room_end) {
      *error = where + ": the slot has no room for " + part.tensor_name;
      return false;
    }
  }
  return true;
}

bool check(const LoadPlan& plan, std::string* error) {
  if (!is_policy(plan.policy)) {
    *error = "policy '" + plan.policy + "' is not known to this library";
    return false;
  }
  if (plan.files.empty() && plan.manage) {
    *error = "no model file is named";
    return false;
  }
  if (plan.queue_depth == 0 || plan.queue_depth > 4096 || plan.io_threads == 0 || plan.io_threads > 256 ||
      plan.read_chunk_bytes < kPage || plan.read_chunk_bytes > kMaxChunkBytes || plan.read_chunk_bytes % kPage != 0) {
    *error = "an I/O setting is out of range";
    return false;
  }
  for (const DenseRange& range : plan.dense) {
    if (!in_file(plan, range.file, range.offset, range.nbytes)) {
      *error = "a dense range lies outside its file";
      return false;
    }
  }
  uint64_t arena_bytes = 0;
  for (const SizeClass& size_class : plan.classes) {
    if (size_class.slots == 0 || size_class.stride_bytes == 0 || size_class.stride_bytes % kPage != 0) {
      *error = "a size class has no slots or an unaligned stride";
      return false;
    }
    if (size_class.slots > kMaxSlots || size_class.stride_bytes >= kMaxOffset / size_class.slots ||
        (arena_bytes += size_class.slots * size_class.stride_bytes) >= kMaxOffset) {
      *error = "a size class is too large";
      return false;
    }
  }
  if (plan.groups.size() > kMaxGroups) {
    *error = "there are more groups of experts than any model has";
    return false;
  }
  for (const ExpertGroup& group : plan.groups) {
    if (!check_group(plan, group, error)) return false;
  }
  return true;
}

}  // namespace

uint64_t ExpertGroup::expert_bytes() const {
  uint64_t nbytes = 0;
  for (const ExpertPart& part : parts) nbytes += part.slice_bytes;
  return nbytes;
}

uint64_t LoadPlan::arena_bytes() const {
  uint64_t total = 0;
  for (const SizeClass& size_class : classes) total += size_class.slots * size_class.stride_bytes;
  return total;
}

bool parse_plan(const std::string& text, LoadPlan* plan, std::string* error) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != "guanaco-plan 1") {
    *error = "not a plan of version 1";
    return false;
  }
  size_t number = 1;
  while (std::getline(lines, line)) {
    ++number;
    std::istringstream in(line);
    std::string key;
    if (!(in >> key)) continue;
    if (!parse_line(key, in, plan) || !(in >> std::ws).eof()) {
      *error = "line " + std::to_string(number) + ": cannot read '" + line.substr(0, 80) + "'";
      return false;
    }
  }
  return check(*plan, error);
}

bool read_plan(const char* path, LoadPlan* plan, std::string* error) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) {
    *error = std::string("cannot open the plan ") + path;
    return false;
  }
  std::string text;
  char buffer[65536];
  size_t got = 0;
  while ((got = std::fread(buffer, 1, sizeof buffer, file)) > 0 && text.size() <= kMaxPlanBytes) {
    text.append(buffer, got);
  }
  const bool is_whole = std::ferror(file) == 0;
  std::fclose(file);
  if (!is_whole) {
    *error = std::string("cannot read the plan ") + path;
    return false;
  }
  if (text.size() > kMaxPlanBytes) {
    *error = "the plan is too large";
    return false;
  }
  return parse_plan(text, plan, error);
}

}  // namespace guanaco
