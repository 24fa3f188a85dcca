// A test harness of one page: tests register themselves, a failed check names file, line and values.
//
// CHECK goes on after a failure; REQUIRE ends the test, for what the rest depends on.
#pragma once

#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*body)();
};

std::vector<Test>& tests();
void report(const char* file, int line, const std::string& what);

struct Abandoned {};  // thrown by REQUIRE
struct Skipped {      // thrown by SKIP: the machine lacks something
  std::string reason;
};

struct Registration {
  Registration(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<long long>(value);
  } else {
    out << value;
  }
  std::string text = out.str();
  return text.size() > 200 ? text.substr(0, 200) + "..." : text;
}

template <typename T>
std::string show(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) text += (text.size() > 1 ? ", " : "") + show(value);
  return text + "]";
}

inline std::string show(std::nullptr_t) { return "null"; }
inline std::string show(bool value) { return value ? "true" : "false"; }

template <typename A, typename B>
bool equal(const A& a, const B& b, const char* text_a, const char* text_b, const char* file, int line) {
  bool same = false;
  if constexpr (std::is_integral_v<A> && std::is_integral_v<B>) {
    same = static_cast<long long>(a) == static_cast<long long>(b);
  } else {
    same = a == b;
  }
  if (!same) report(file, line, std::string(text_a) + " == " + text_b + ": " + show(a) + " against " + show(b));
  return same;
}

inline bool contains(const std::string& text, const char* part, const char* file, int line) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) report(file, line, "'" + text + "' does not contain '" + part + "'");
  return found;
}

}  // namespace check

#define TEST(name)                                                \
  static void test_##name();                                      \
  static const check::Registration register_##name{#name, test_##name}; \
  static void test_##name()

#define CHECK(condition) ((condition) ? void() : check::report(__FILE__, __LINE__, #condition))
#define CHECK_EQ(a, b) static_cast<void>(check::equal((a), (b), #a, #b, __FILE__, __LINE__))
#define CHECK_CONTAINS(text, part) static_cast<void>(check::contains((text), (part), __FILE__, __LINE__))
#define REQUIRE(condition)                                  \
  do {                                                      \
    if (!(condition)) {                                     \
      check::report(__FILE__, __LINE__, #condition);        \
      throw check::Abandoned{};                             \
    }                                                       \
  } while (0)
#define SKIP(reason) throw check::Skipped{reason}
