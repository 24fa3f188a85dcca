// Routing from a file: what is written where, and what is refused.
#include "bed.h"
#include "check.h"
#include "replay.h"

using guanaco::EngineApi;
using guanaco::Replay;
using guanaco::Stats;
using guanaco::Tensor;

namespace {

struct Header {
  uint32_t n_layer = 2, n_expert = 8, top_k = 3, n_tokens = 5;
  uint32_t version = 1;
  std::string magic = "GNRP";
};

// Expert (token + 2 * layer + k) % 8 everywhere.
std::string replay_file(const Header& header, size_t n_ids) {
  std::string bytes = header.magic;
  const auto word = [&](uint32_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); };
  word(header.version);
  for (const uint32_t value : {header.n_layer, header.n_expert, header.top_k, header.n_tokens}) word(value);
  for (size_t i = 0; i < n_ids; ++i) {
    const size_t k = i % 3, layer = i / 3 % 2, token = i / 6;
    const int16_t id = static_cast<int16_t>((token + 2 * layer + k) % 8);
    bytes.append(reinterpret_cast<const char*>(&id), sizeof id);
  }
  return bytes;
}

struct ReplayRig {
  ReplayRig() {
    std::string error;
    REQUIRE(replay.open(dir.write("trace", replay_file({}, 30)), &error));
    api.buffer_is_host = [](void* buffer) { return buffer != nullptr && *static_cast<bool*>(buffer); };
    stats->replay_on = 1;
  }
  // A selection of `rows` rows whose rows lie `pitch` numbers apart.
  Tensor ids(int64_t top_k, int64_t rows, size_t pitch) {
    values.assign(static_cast<size_t>(rows) * pitch, -1);
    Tensor tensor{};
    tensor.ne[0] = top_k;
    tensor.ne[1] = rows;
    tensor.ne[2] = tensor.ne[3] = 1;
    tensor.nb[0] = 4;
    tensor.nb[1] = 4 * pitch;
    tensor.data = values.data();
    return tensor;
  }

  TempDir dir;
  Replay replay;
  Stats stats{""};
  EngineApi api;
  std::vector<int32_t> values;
};

using Values = std::vector<int32_t>;

}  // namespace

TEST(replay_writes_rows) {
  ReplayRig rig;
  Tensor ids = rig.ids(3, 2, 4);  // a view of a wider tensor
  rig.replay.overwrite(rig.api, &rig.stats, 1, 2, &ids);
  CHECK_EQ(rig.values, (Values{2, 3, 4, -1, 3, 4, 5, -1}));
  rig.replay.advance(&rig.stats, 2);
  CHECK_EQ(rig.stats->replay_position.load(), 2);
  rig.replay.overwrite(rig.api, &rig.stats, 0, 2, &ids);
  CHECK_EQ(rig.values, (Values{2, 3, 4, -1, 3, 4, 5, -1}));
}

TEST(replay_last_rows_of_a_batch) {
  ReplayRig rig;
  Tensor ids = rig.ids(3, 1, 3);  // the last layer computes one row of four
  rig.replay.overwrite(rig.api, &rig.stats, 0, 4, &ids);
  CHECK_EQ(rig.values, (Values{3, 4, 5}));
}

TEST(replay_stays_in_its_bounds) {
  ReplayRig rig;
  Tensor ids = rig.ids(3, 1, 3);
  rig.replay.overwrite(rig.api, &rig.stats, 2, 1, &ids);  // a layer it does not know
  CHECK_EQ(rig.values, (Values{-1, -1, -1}));
  CHECK_EQ(rig.stats->replay_exhausted.load(), 0);
  rig.stats->replay_position = 5;
  rig.replay.overwrite(rig.api, &rig.stats, 0, 1, &ids);
  CHECK_EQ(rig.values, (Values{-1, -1, -1}));
  CHECK_EQ(rig.stats->replay_exhausted.load(), 1);
  rig.stats->replay_position = ~uint64_t{0};
  rig.replay.overwrite(rig.api, &rig.stats, 0, 1, &ids);
  CHECK_EQ(rig.values, (Values{-1, -1, -1}));
  rig.stats->replay_position = 0;
  Tensor wide = rig.ids(4, 1, 4);
  rig.replay.overwrite(rig.api, &rig.stats, 0, 1, &wide);
  CHECK_EQ(rig.values, (Values{0, 1, 2, -1}));
}

TEST(replay_gives_each_client_a_stretch_of_its_own) {
  ReplayRig rig;  // five tokens
  rig.stats->replay_strands = 2;
  Tensor two = rig.ids(3, 2, 3);
  rig.replay.overwrite(rig.api, &rig.stats, 0, 2, &two);
  CHECK_EQ(rig.values, (Values{0, 1, 2, 2, 3, 4}));  // tokens 0 and 2: a stretch is five over two long
  rig.replay.advance(&rig.stats, 2);
  CHECK_EQ(rig.stats->replay_position.load(), 1);
  rig.replay.advance(&rig.stats, 1);
  CHECK_EQ(rig.stats->replay_position.load(), 2);
  // More tokens than clients are one's prompt, in order, and the trace begins anew at its end.
  Tensor last = rig.ids(3, 2, 3);
  rig.replay.overwrite(rig.api, &rig.stats, 0, 4, &last);
  CHECK_EQ(rig.values, (Values{4, 5, 6, 0, 1, 2}));  // rows 2 and 3 of four from token 2: tokens 4 and 0
  rig.replay.advance(&rig.stats, 4);
  CHECK_EQ(rig.stats->replay_position.load(), 6);
  CHECK_EQ(rig.stats->replay_exhausted.load(), 0);
  CHECK(rig.replay.rows(*rig.stats, 1, 1).on);
  rig.stats->replay_on = 0;
  CHECK(!rig.replay.rows(*rig.stats, 1, 1).on);
}

TEST(replay_follows_the_layers_of_the_plan) {
  Bed bed;
  const uint32_t file = bed.file(64 * kKiB, false);
  const uint32_t size_class = bed.size_class(4, {1024});
  // MoE layers 1, 3 and 4; layer 3 has two sets of experts, and the groups need not be in order.
  for (const uint32_t layer : {3u, 3u, 1u, 4u}) bed.group(layer, size_class, 4, {{0, 1024, file}});
  CHECK_EQ(guanaco::trace_layers(bed.plan.groups), (std::vector<uint32_t>{1, guanaco::kNoTraceLayer, 0, 2}));
  CHECK(guanaco::trace_layers({}).empty());
  ReplayRig rig;
  Tensor ids = rig.ids(3, 1, 3);
  rig.replay.overwrite(rig.api, &rig.stats, guanaco::kNoTraceLayer, 1, &ids);
  CHECK_EQ(rig.values, (Values{-1, -1, -1}));
}

TEST(replay_off_or_on_a_card) {
  ReplayRig rig;
  Tensor ids = rig.ids(3, 1, 3);
  rig.stats->replay_on = 0;
  rig.replay.overwrite(rig.api, &rig.stats, 0, 1, &ids);
  rig.replay.advance(&rig.stats, 1);
  CHECK_EQ(rig.stats->replay_position.load(), 0);
  rig.stats->replay_on = 1;
  bool on_host = false;
  Tensor whole{};
  whole.buffer = &on_host;
  ids.view_src = &whole;
  rig.replay.overwrite(rig.api, &rig.stats, 0, 1, &ids);
  CHECK_EQ(rig.values, (Values{-1, -1, -1}));
  on_host = true;
  rig.replay.overwrite(rig.api, &rig.stats, 0, 1, &ids);
  CHECK_EQ(rig.values, (Values{0, 1, 2}));
}

namespace {

// As replay_file(), with predictions: rank r of a layer of a token is (token + 2 * layer + r) % 8, and -1 in layer 0.
std::string predicting_file(uint32_t n_ranks, size_t n_predictions) {
  Header header;
  header.version = 2;
  std::string bytes = replay_file(header, 30);
  bytes.append(reinterpret_cast<const char*>(&n_ranks), sizeof n_ranks);
  for (size_t i = 0; i < n_predictions; ++i) {
    const size_t rank = i % n_ranks, layer = i / n_ranks % 2, token = i / n_ranks / 2;
    const int16_t id = layer == 0 ? int16_t{-1} : static_cast<int16_t>((token + 2 * layer + rank) % 8);
    bytes.append(reinterpret_cast<const char*>(&id), sizeof id);
  }
  return bytes;
}

}  // namespace

TEST(replay_with_predictions) {
  ReplayRig rig;
  CHECK_EQ(rig.replay.predicted(0, 1, 0), -1);  // a trace without
  TempDir dir;
  Replay replay;
  std::string error;
  REQUIRE(replay.open(dir.write("trace", predicting_file(4, 40)), &error));
  CHECK_EQ(replay.predicted(0, 0, 0), -1);
  CHECK_EQ(replay.predicted(3, 1, 0), 5);
  CHECK_EQ(replay.predicted(3, 1, 3), 0);
  CHECK_EQ(replay.predicted(3, 1, 4), -1);
  CHECK_EQ(replay.predicted(3, 2, 0), -1);
  CHECK_EQ(replay.predicted(3, guanaco::kNoTraceLayer, 0), -1);
  CHECK_EQ(replay.predicted(5, 1, 0), -1);
  CHECK_EQ(replay.predicted(~uint64_t{0}, 1, 0), -1);
  Tensor ids = rig.ids(3, 1, 3);
  replay.overwrite(rig.api, &rig.stats, 1, 1, &ids);
  CHECK_EQ(rig.values, (Values{2, 3, 4}));
}

TEST(replay_refuses_bad_predictions) {
  TempDir dir;
  const auto is_refused = [&](const std::string& bytes) {
    Replay replay;
    std::string error;
    CHECK(!replay.open(dir.write("trace", bytes), &error));
    CHECK_CONTAINS(error, "is not a replay file");
    return !replay.is_open() && replay.predicted(0, 1, 0) == -1;
  };
  CHECK(is_refused(predicting_file(4, 39)));
  CHECK(is_refused(predicting_file(9, 90)));  // more ranks than experts
  CHECK(is_refused(predicting_file(1, 0)));
  std::string none = predicting_file(1, 10);
  none.replace(24 + 60, 4, std::string(4, '\0'));
  CHECK(is_refused(none));
  std::string beyond = predicting_file(1, 10);
  beyond.replace(24 + 60 + 4 + 2, 2, std::string("\x08\x00", 2));  // expert 8 of 8
  CHECK(is_refused(beyond));
  std::string below = predicting_file(1, 10);
  below.replace(24 + 60 + 4 + 2, 2, std::string("\xfe\xff", 2));  // -2
  CHECK(is_refused(below));
}

TEST(replay_refuses) {
  TempDir dir;
  const auto refused = [&](const Header& header, size_t n_ids) {
    Replay replay;
    std::string error;
    const bool good = replay.open(dir.write("trace", replay_file(header, n_ids)), &error);
    CHECK(!good);
    CHECK(!replay.is_open());
    CHECK_CONTAINS(error, "is not a replay file");
  };
  const auto changed = [](auto change) {
    Header header;
    change(&header);
    return header;
  };
  refused(changed([](Header* h) { h->magic = "GGUF"; }), 30);
  refused(changed([](Header* h) { h->version = 2; }), 30);  // without predictions
  refused(changed([](Header* h) { h->version = 3; }), 30);
  refused(changed([](Header* h) { h->n_expert = 7; }), 30);  // an id out of range
  refused(changed([](Header* h) { h->n_expert = 40000; }), 30);
  refused(changed([](Header* h) { h->n_tokens = 6; }), 30);
  refused(changed([](Header* h) { h->n_tokens = 0; }), 30);
  refused(changed([](Header* h) { h->n_layer = 0; }), 30);
  refused(changed([](Header* h) { h->n_tokens = 0xffffffff; }), 30);
  // The product is 2^64 + 4.
  refused(changed([](Header* h) { h->n_layer = 769546; h->top_k = 494770; h->n_tokens = 48448661; }), 30);
  refused({}, 29);
  Replay replay;
  std::string error;
  CHECK(!replay.open(dir.path("missing"), &error));
  CHECK(!replay.open(dir.path(""), &error));
  CHECK(!replay.open(dir.write("trace", "GNRP"), &error));
}
