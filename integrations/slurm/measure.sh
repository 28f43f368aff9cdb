#!/usr/bin/env bash
# What the two examples beside this file run on a node: tiny_llama_bench under srun. Its files go to
# results/<UTC time>_slurm_<job>/; the exit status is the program's. Arguments are options of tiny_llama_bench.
set -euo pipefail

# sbatch runs a copy of its script, so the checkout is where sbatch was called, unless it is named
checkout="${TINY_LLAMA_CHECKOUT:-${SLURM_SUBMIT_DIR:-$PWD}}"
program="$checkout/build/benchmarks/tiny_llama_bench"
if [[ ! -x "$program" ]]; then
  echo "error: $program is not built. On a login node: scripts/bench --setup-only. Then call sbatch in that checkout," \
    "or set TINY_LLAMA_CHECKOUT to it." >&2
  exit 2
fi

# To go on after a time limit: TINY_LLAMA_RESUME=<folder of that run>, and the same options.
if [[ -n "${TINY_LLAMA_RESUME:-}" ]]; then
  folder="$TINY_LLAMA_RESUME"
  set -- "$@" --resume
else
  folder="$checkout/results/$(date -u +%Y%m%dT%H%M%SZ)_slurm_${SLURM_JOB_ID:-none}"
  mkdir -p "$folder"
fi

step=(--ntasks=1)
# srun does not take this over from sbatch since Slurm 22.05
if [[ -n "${SLURM_CPUS_PER_TASK:-}" ]]; then
  step+=("--cpus-per-task=$SLURM_CPUS_PER_TASK")
  set -- --threads "$SLURM_CPUS_PER_TASK" "$@"
fi

echo "Results: $folder"
status=0
srun "${step[@]}" "$program" "$@" --figures-of-merit "--benchmark_out=$folder/results.json" \
  --journal "$folder/journal.jsonl" | tee -ai "$folder/summary.txt" || status=$?
if [[ $status -eq 130 ]]; then
  echo "interrupted. To go on: TINY_LLAMA_RESUME=$folder and the same options" >&2
fi
exit "$status"
