// Heat of experts in shared memory: its layout, and that it follows what is served.
#include "heat.h"

#include <fstream>
#include <iterator>

#include "engine_rig.h"

using guanaco::HeatMap;
using guanaco::kHeatResident;

namespace {

struct Shared {
  std::string bytes;
  template <typename Number>
  Number at(size_t offset) const {
    REQUIRE(offset + sizeof(Number) <= bytes.size());
    Number value{};
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
  }
};

Shared read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>())};
}

}  // namespace

TEST(heat_follows_what_is_served) {
  EngineRig rig(2, 6, 8);
  rig.bed.plan.groups[1].layer = 5;
  const uint64_t nbytes = HeatMap::nbytes(rig.bed.plan);
  CHECK_EQ(nbytes, 4 * 8 + 2 * 8 + 16 * 6);
  rig.bed.plan.heat_path = rig.bed.dir.write("heat", std::string(nbytes, '\0'));
  rig.start();
  TestGraph graph;
  MoeLayer& first = rig.add_layer(&graph, 0, {{3, 5}});
  rig.add_layer(&graph, 1, {{0, 7}});
  CHECK_EQ(rig.run(&graph), 0);
  graph.select(&first, {{3, 6}});
  CHECK_EQ(rig.run(&graph), 0);
  const Shared shared = read_file(rig.bed.plan.heat_path);
  // engine/heat.py reads these places.
  CHECK_EQ(shared.at<uint64_t>(0), guanaco::kHeatMagic);
  CHECK_EQ(shared.at<uint64_t>(8), 1);
  CHECK_EQ(shared.at<uint64_t>(16), 2);
  CHECK_EQ(shared.at<uint64_t>(24), 16);
  CHECK_EQ(shared.at<uint32_t>(40), 5);  // layer of the second group
  CHECK_EQ(shared.at<uint32_t>(44), 8);  // and its experts
  const size_t uses = 48, heat = uses + 16 * 4;
  CHECK_EQ(shared.at<uint32_t>(uses + 3 * 4), 2);
  CHECK_EQ(shared.at<uint32_t>(uses + 5 * 4), 1);
  CHECK_EQ(shared.at<uint32_t>(uses + 4 * 4), 0);
  CHECK_EQ(shared.at<uint32_t>(uses + (8 + 7) * 4), 2);
  const auto heat_of = [&](size_t expert) { return shared.at<uint16_t>(heat + expert * 2); };
  CHECK((heat_of(3) & kHeatResident) != 0);
  CHECK((heat_of(4) & kHeatResident) == 0);
  CHECK(heat_of(3) > heat_of(6) && heat_of(6) > heat_of(5) && heat_of(5) > heat_of(4));
}

TEST(heat_of_a_prompt_counts_its_last_tokens_only) {
  EngineRig rig(1, 16, 32);
  rig.bed.plan.batch_tokens = 2;
  rig.bed.plan.heat_path = rig.bed.dir.write("heat", std::string(HeatMap::nbytes(rig.bed.plan), '\0'));
  rig.start();
  TestGraph prompt;
  rig.add_layer(&prompt, 0, {{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  CHECK_EQ(rig.run(&prompt), 0);
  const Shared shared = read_file(rig.bed.plan.heat_path);
  const size_t uses = 32 + 8;
  CHECK_EQ(shared.at<uint32_t>(uses + 5 * 4), 0);
  CHECK_EQ(shared.at<uint32_t>(uses + 6 * 4), 1);
}

TEST(heat_without_a_usable_file_is_nobodys) {
  EngineRig rig(1, 4);
  for (const std::string& path : {std::string(), rig.bed.dir.path("missing"), rig.bed.dir.write("short", "abc")}) {
    EngineRig other(1, 4);
    other.bed.plan.heat_path = path;
    other.start();
    TestGraph graph;
    other.add_layer(&graph, 0, {{1, 2}});
    CHECK_EQ(other.run(&graph), 0);
  }
  CHECK_EQ(read_file(rig.bed.dir.path("short")).bytes.size(), 3);
}
