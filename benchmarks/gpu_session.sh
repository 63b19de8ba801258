#!/usr/bin/env bash
# One session on an H100 or H200, under 8 minutes: the kernel suites' cases on the GPU, then the benchmark, which checks
# every case before it times any. Leaves JSON under benchmarks/results. Has not run on a GPU.
#
#   benchmarks/gpu_session.sh            suite and benchmark; PYTHON names the interpreter
#   benchmarks/gpu_session.sh --dry-run  the same steps on a CPU, with tiny weights and the interpreter
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
mkdir -p benchmarks/results
results="benchmarks/results/matmul-$(date -u +%Y%m%d-%H%M%S).json"
if [ "${1:-}" = "--dry-run" ]; then
  export JAX_PLATFORMS=cpu
  options=(--interpret --kinds q4,fp8)
  results=$(mktemp --suffix=.json)
else
  options=(--seconds 240)
fi
timeout 150 "$python" -m pytest -q tests/pallas_kernels -k "on_the_gpu"
timeout 300 "$python" -m benchmarks.bench_matmul_gpu "${options[@]}" --json "$results"
echo "results in $results"
