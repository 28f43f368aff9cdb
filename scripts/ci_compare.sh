#!/usr/bin/env bash
# The gate as any CI runs it; see --help.
set -euo pipefail

show_help() {
  cat <<'HELP'
scripts/ci_compare.sh [option of scripts/compare run]...

Builds this checkout and the base commit on this machine, measures both interleaved under a time budget, and ends with the gate's exit
status. What it leaves in the output folder: comparison.md (a table for a comment), comparison.json, .html and .csv, and
blocks.jsonl, every slice that was measured. On GitHub the table also goes to the job's summary.

Environment:
COMPARE_BASE     git commit of the base; default: HEAD^1, for a merge commit what it was merged into
COMPARE_BUDGET   time to measure, builds apart; default: 10m
COMPARE_OUTPUT   output folder; default: results/ci_compare

The checkout needs its history (a full or a two-commit clone), and other work on the machine makes verdicts later.
Exit status: as scripts/compare.
HELP
}

for option in "$@"; do
  if [[ "$option" == --help || "$option" == -h ]]; then
    show_help
    exit
  fi
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
base="${COMPARE_BASE:-HEAD^1}"
output="${COMPARE_OUTPUT:-results/ci_compare}"
mkdir -p "$output"
# a table that an earlier run left must not pass for this one's, and a recording is never written over
rm -f "$output"/comparison.{md,json,html,csv} "$output"/blocks.jsonl

status=0
scripts/compare run --base "$base" --budget "${COMPARE_BUDGET:-10m}" --out "$output" "$@" || status=$?

if [[ ! -f "$output/comparison.md" ]]; then
  printf 'No comparison with %s: `scripts/compare run` ended with exit status %d; the log says why.\n' "$base" "$status" \
    >"$output/comparison.md"
fi
if [[ -n "${GITHUB_STEP_SUMMARY:-}" ]]; then cat "$output/comparison.md" >>"$GITHUB_STEP_SUMMARY"; fi
exit "$status"
