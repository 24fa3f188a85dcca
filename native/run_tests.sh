#!/bin/sh
# Builds and runs the native tests. Kinds, all but the last by default:
#   plain     optimised, warnings are errors; also preloads the built library into a process
#   asan      address and undefined behaviour sanitizers
#   tsan      thread sanitizer
#   nouring   as plain, without io_uring even where liburing is installed
# Usage: native/run_tests.sh [kind ...]     GUANACO_TEST_FILTER: only tests with this in their name
# Needs a C++17 compiler (CXX chooses one) and cmake; ninja and liburing are used where they are found.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
kinds=${*:-plain asan tsan}
jobs=${GUANACO_JOBS:-$(nproc)}
suffix=${CXX:+-$(basename "$CXX")}
generator=
if command -v ninja >/dev/null; then generator="-G Ninja"; fi
# Random addresses beyond what the thread sanitizer expects end it before the first test.
fixed_addresses=
if setarch -R true 2>/dev/null; then fixed_addresses="setarch -R"; fi

export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
export TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}"

mkdir -p "$root/build"
for kind in $kinds; do
  runner=
  case $kind in
    plain) set -- -DCMAKE_BUILD_TYPE=Release ;;
    nouring) set -- -DCMAKE_BUILD_TYPE=Release -DGUANACO_URING=OFF ;;
    asan) set -- -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DGUANACO_SANITIZE=address,undefined ;;
    tsan)
      set -- -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DGUANACO_SANITIZE=thread
      runner=$fixed_addresses
      ;;
    *)
      echo "unknown kind '$kind'; known: plain asan tsan nouring" >&2
      exit 2
      ;;
  esac
  build="$root/build/native-$kind$suffix"
  # shellcheck disable=SC2086 # the generator is two words
  cmake $generator -S "$root/native" -B "$build" -DGUANACO_TESTS=ON "$@" >"$build.log" 2>&1 || {
    cat "$build.log" >&2
    exit 1
  }
  cmake --build "$build" --parallel "$jobs" --target guanaco_tests >"$build.log" 2>&1 || {
    cat "$build.log" >&2
    exit 1
  }
  rm -f "$build.log"
  printf 'native %s: ' "$kind$suffix"
  if $runner "$build/guanaco_tests" "${GUANACO_TEST_FILTER:-}" >"$build/output.txt" 2>&1; then
    tail -n 1 "$build/output.txt"
    grep '^skipped' "$build/output.txt" || true
  else
    echo failed
    cat "$build/output.txt" >&2
    exit 1
  fi
done
