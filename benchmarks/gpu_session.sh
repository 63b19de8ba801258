#!/usr/bin/env bash
# One session on an H100 or H200, under 8 minutes: the kernel suites' cases on the GPU, then the benchmark, which checks
# every case of a kind before it times any. A step that fails or never ends is stopped, named at the end and makes the
# exit status 1; the others run all the same, each kind in a process of its own, and what was measured until then is in
# the results, JSON that benchmarks.compare and benchmarks.roofline read. Has not run on a GPU.
#
#   benchmarks/gpu_session.sh            suite and benchmark; PYTHON names the interpreter, RESULTS the file
#   benchmarks/gpu_session.sh --dry-run  the same steps on a CPU, with tiny weights and the interpreter
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
kinds=(q4 w8 nvfp4 fp8 q6 q5)
options=(--seconds 38)
if [ "${1:-}" = "--dry-run" ]; then
  export JAX_PLATFORMS=cpu
  kinds=(q4 fp8)
  options=(--interpret --tokens 17)
  results=${RESULTS:-$(mktemp --suffix=.json --dry-run)}
else
  mkdir -p benchmarks/results
  results=${RESULTS:-benchmarks/results/gpu-$(date -u +%Y%m%d-%H%M%S).json}
fi
failed=()

step() { # step SECONDS NAME COMMAND...: run for so long at most, remember a failure
  local seconds=$1 name=$2 status=0
  shift 2
  echo "--- $name"
  timeout --kill-after=5 "$seconds" "$@" || status=$?
  case $status in
    0) ;;
    124 | 137) failed+=("$name: stopped after $seconds s") ;;
    *) failed+=("$name: exit status $status") ;;
  esac
}

# The suites' own set-up wants packages that only tests need, and a warning is no failure here.
step 70 "kernel suites" "$python" -m pytest -q --noconftest -W default tests/pallas_kernels -k on_the_gpu
for kind in "${kinds[@]}"; do
  step 52 "matmul $kind" "$python" -m benchmarks.bench_matmul_gpu "${options[@]}" --kinds "$kind" --json "$results" --append
done
echo "results in $results"
if [ "${#failed[@]}" -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
