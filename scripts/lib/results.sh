# shellcheck shell=bash
# Runs the suite and keeps what it writes in a folder of results/.

results_folder="$project_root/results"

# What the program takes, and --benchmark_*; said here for the time before it is built.
bench_options="--help --device --blas --sdpa-backend --problem-sizes --threads --seed --verify --memory-limit --admit
  --max-seconds-per-case --precision --cold-cache --journal --resume --list --dry-run --columns --trace --find-limit --confirm
  --figures-of-merit --describe-device --serve --plugin --hang-limit --exclude --components --passes --variants --sizes --dtypes --batch --seq --hidden-dim
  --n-layers --n-heads --n-kv-heads --intermediate-dim --vocab-size --config --weights --tensor-parallel
  --pipeline-parallel"

# Nobody waits for a build to be told of a mistyped option; all else the program says itself.
check_bench_options() { # <argument>...
  local argument known=" ${bench_options//$'\n'/ } "
  for argument in "$@"; do
    case "$argument" in
      --benchmark_*) ;;
      --*)
        if [[ "$known" != *" ${argument%%=*} "* ]]; then
          say "scripts/bench: '${argument%%=*}': is no option; allowed: --setup-only --quick --benchmark_*" $bench_options
          exit 2
        fi
        ;;
    esac
  done
}

# Whether these arguments only list, explain or prove, so that nothing is measured and no folder is needed.
only_explains() {
  given --list,--dry-run,--find-limit,--describe-device "$@" || [[ "$(given_value --verify "$@")" == only ]] ||
    [[ " $* " =~ " --benchmark_list_tests"(=true)?" " ]]
}

# given_value <option> <argument>...: the value of the last `--option value` or `--option=value`; status 1 where it is absent.
given_value() {
  local option="$1" value="" found=1
  shift
  while [[ $# -gt 0 ]]; do
    case "$1" in
      "$option="*) value="${1#*=}" found=0 ;;
      "$option") value="${2:-}" found=0 ;;
    esac
    shift
  done
  if [[ $found -eq 0 ]]; then printf '%s\n' "$value"; fi
  return "$found"
}

# `AMD Instinct MI300X` -> `amd_instinct_mi300x`: a device's name as a part of a file name
slug_of='
import json, re, sys
name = json.load(sys.stdin)["device"]["name"].lower()
plain = re.sub(r"[^a-z0-9]+", "_", re.sub(r"\((r|tm|c)\)", "", name))
print(plain[:48].strip("_") or "unknown_device")'

# The program says which device --device means.
device_slug() { # <program> <argument>...
  local program="$1" device options=() description
  shift
  if device="$(given_value --device "$@")"; then options=(--device "$device"); fi
  description="$("$program" --describe-device "${options[@]}")" || return
  python3 -c "$slug_of" <<<"$description"
}

# The newest run that did not come to its end, for --resume. It keeps its marker through Ctrl-C, kill -9 and a lost machine.
unfinished_run() {
  local folder newest=""
  for folder in "$results_folder"/*_*/; do
    if [[ -f "$folder/.unfinished" && -s "$folder/journal.jsonl" ]]; then newest="${folder%/}"; fi
  done
  [[ -n "$newest" ]] && printf '%s\n' "$newest"
}

new_run_folder() { # <device slug>
  local folder="" pause
  mkdir -p "$results_folder"
  # again after two runs in one second; or the folder may not be written
  for pause in 0 1 1 1 1; do
    sleep "$pause"
    folder="$results_folder/$(date -u +%Y%m%dT%H%M%SZ)_$1"
    if mkdir "$folder" 2>/dev/null; then
      printf '%s\n' "$folder"
      return
    fi
  done
  say "error: cannot make the results folder $folder"
  return 2
}

# run_and_keep_results <program> <argument>...: exits with the program's status.
run_and_keep_results() {
  local program="$1" folder="" slug status=0 options=() file
  shift
  if given --resume "$@" && ! given_value --journal "$@" >/dev/null; then
    folder="$(unfinished_run)" || {
      say "error: --resume: results/ has no run that did not end. To name a journal: --resume --journal FILE"
      exit 2
    }
    say "-- resuming $folder"
  else
    slug="$(device_slug "$program" "$@")" || exit
    folder="$(new_run_folder "$slug")" || exit
  fi
  given_value --benchmark_out "$@" >/dev/null || options+=("--benchmark_out=$folder/results.json")
  given_value --journal "$@" >/dev/null || options+=(--journal "$folder/journal.jsonl")

  : >"$folder/.unfinished"
  # Ctrl-C is the program's affair: it finishes the case in hand and writes its results. This script and tee wait for it.
  trap ':' INT
  "$program" "$@" "${options[@]}" | tee -ai "$folder/summary.txt" || status=${PIPESTATUS[0]}
  # the program's own, 1 too
  trap - INT EXIT

  if [[ $status -le 1 || ! -s "$folder/journal.jsonl" ]]; then rm -f "$folder/.unfinished"; fi
  for file in "$folder"/*; do
    if [[ ! -s "$file" ]]; then rm -f "$file"; fi
  done
  # a bad option leaves nothing behind
  if rmdir "$folder" 2>/dev/null; then exit "$status"; fi
  say "Results are in $folder:"
  for file in "$folder"/*; do
    if [[ -f "$file" ]]; then say "  $file"; fi
  done
  if [[ -f "$folder/.unfinished" ]]; then
    say "The run did not end (exit status $status). To continue it, give the same options and --resume."
  fi
  exit "$status"
}
