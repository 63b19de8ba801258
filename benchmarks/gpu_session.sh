#!/usr/bin/env bash
# One session on an H100 or H200, under 8 minutes: the kernel suites' cases on the GPU, then products and row gathers,
# each checked before it is timed. A step that fails or never ends is stopped, named at the end and makes the exit
# status 1; the others run all the same, each suite and kind in a process of its own, and what was measured until then is
# in the results, JSON that benchmarks.compare and benchmarks.roofline read. What was printed is in a file beside it.
# Has not run on a GPU.
#
#   benchmarks/gpu_session.sh            suites and benchmarks; PYTHON names the interpreter, RESULTS the file
#   benchmarks/gpu_session.sh --dry-run  the same steps on a CPU, with tiny weights and the interpreter
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
kinds=(q4 w8 nvfp4 fp8 q6 q5)
options=(--seconds 42)
gathers=(--seconds 26)
if [ "${1:-}" = "--dry-run" ]; then
  export JAX_PLATFORMS=cpu
  kinds=(q4 fp8)
  options=(--interpret --tokens 17)
  gathers=(--interpret)
  results=${RESULTS:-$(mktemp --suffix=.json --dry-run)}
else
  mkdir -p benchmarks/results
  results=${RESULTS:-benchmarks/results/gpu-$(date -u +%Y%m%d-%H%M%S).json}
fi
log=${results%.json}.log
failed=()

# Programs that several steps need, such as XLA's own products, are compiled once.
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
export JAX_COMPILATION_CACHE_DIR=$cache JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0

step() { # step SECONDS NAME COMMAND...: run for so long at most, remember a failure
  local seconds=$1 name=$2 status
  shift 2
  echo "--- $name"
  timeout --kill-after=5 "$seconds" "$@" 2>&1 | tee -a "$log"
  status=${PIPESTATUS[0]}
  case $status in
    0) ;;
    124 | 137) failed+=("$name: stopped after $seconds s") ;;
    *) failed+=("$name: exit status $status") ;;
  esac
}

# jax assembles kernels with the ptxas of the nvidia wheels, else of PATH, else of /usr/local/cuda.
for tool in "nvidia-smi -L" "ptxas --version"; do
  echo "$tool: $($tool 2>&1 | tail -n 1)" | tee -a "$log"
done
# The suites' own set-up wants packages that only tests need, a file that cannot be imported or a kernel that never ends
# must not stop the others, and a warning is no failure here.
for suite in "decode 36" "prefill 26" "gather 20"; do
  read -r name seconds <<<"$suite"
  step "$seconds" "suite $name" \
    "$python" -m pytest -q --tb short --noconftest -W default "tests/pallas_kernels/test_$name.py" -k on_the_gpu
done
for kind in "${kinds[@]}"; do
  step 52 "matmul $kind" "$python" -m benchmarks.bench_matmul_gpu "${options[@]}" --kinds "$kind" --json "$results" --append
done
step 36 "gather" "$python" -m benchmarks.bench_embedding_gpu "${gathers[@]}" --json "$results" --append
echo "results in $results, what was printed in $log"
if [ "${#failed[@]}" -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
