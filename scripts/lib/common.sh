# shellcheck shell=bash
# Paths, messages, logged steps and the lock. Sourced; the caller has set -euo pipefail.

project_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
scripts_folder="$project_root/scripts"
dependencies_folder="$project_root/.deps"
log_folder="$dependencies_folder/log"
# A user without a folder of their own that can be written: ccache would fail each compilation.
if [[ ! -w "${HOME:-}" ]]; then export CCACHE_DIR="${CCACHE_DIR:-$dependencies_folder/ccache}"; fi

# Progress goes to standard error, so that standard output holds results only.
say() { printf '%s\n' "$*" >&2 || true; }

# Exit status 1 is a verdict of the commands (a regression, a case that failed), and theirs alone: what ends a script here, such as a
# checkout that cannot be written or a full disk, ends it with 2.
end_without_verdict() {
  if [[ $? -eq 1 ]]; then
    say "error: the set-up did not come to its end, the lines above say why. It writes into its checkout: if this user cannot,"
    say "   set up a clone of one's own (git clone '$project_root'), or let the checkout's owner run scripts/bench --setup-only."
    exit 2
  fi
}
trap end_without_verdict EXIT

# A long step is seen to live: the last line of its log, which of a build is `[120/380] Building ...`, on a terminal once a second, and
# elsewhere as a line every half minute.
progress_seconds=30
show_end_of_log() { # <log file>
  local started=$SECONDS shown=0 width=100 line
  if [[ -t 2 ]]; then width="$(tput cols 2>/dev/null || echo 80)"; fi
  # Ends with the script itself, since a process in the background does not see Ctrl-C. What sleeps on for a moment holds neither the
  # lock nor a pipe that somebody reads to its end.
  while sleep 1 >/dev/null 2>&1 9>&- && kill -0 $$ 2>/dev/null; do
    line="$(tail -n 1 "$1" 2>/dev/null | tr -d '\r' | tr '\t' ' ')"
    line="$((SECONDS - started)) s  $line"
    if [[ -t 2 ]]; then
      printf '\r   %s\033[K' "${line:0:width-4}" >&2
    elif ((SECONDS - started >= shown + progress_seconds)); then
      shown=$((SECONDS - started))
      say "   ${line:0:width}"
    fi
  done
}

# run_step <title> <log name> <command>...: runs the command (a program or a function of ours), its output in a log. A failure
# says which step it was, shows the end of the log and where the rest is; Ctrl-C ends the script.
# The command gets a shell of its own: `set -e` would be off in a function that is called as a condition.
run_step() {
  local title="$1" log_file="$log_folder/$2.log" started=$SECONDS status=0 ticker interrupted=""
  shift 2
  say "-- $title"
  # a full disk is met here first
  mkdir -p "$log_folder" && : >"$log_file" || return 1
  show_end_of_log "$log_file" &
  ticker=$!
  trap 'interrupted=yes' INT
  bash -c 'set -euo pipefail; source "$0"; trap - EXIT; "$@"' "$scripts_folder/lib/set_up.sh" "$@" >"$log_file" 2>&1 </dev/null || status=$?
  trap - INT
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
  if [[ -n "$interrupted" ]]; then
    say "interrupted during: $title. The same command continues from here."
    exit 130
  fi
  if [[ $status -ne 0 ]]; then
    say "error: this step failed (exit status $status): $title"
    tail -n 15 "$log_file" 2>/dev/null | cut -c -240 | sed 's/^/   | /' >&2 || true
    say "   The whole log: $log_file"
    return "$status"
  fi
  say "   done in $((SECONDS - started)) s"
}

# For steps without which nothing can go on. Exit status 2, since 1 is the benchmark's "a case failed".
require_step() {
  if run_step "$@"; then return 0; fi
  say "   What was done before this step is kept: once the cause is gone, the same command continues from here."
  exit 2
}

# Two set-ups at once in one checkout would tear each other's half-made files apart: the second one waits.
lock_set_up() {
  mkdir -p "$dependencies_folder"
  command -v flock >/dev/null || return 0
  exec 9>"$dependencies_folder/set-up.lock"
  if ! flock --nonblock 9; then
    say "-- waiting for another set-up in this checkout to end"
    flock 9
  fi
}
unlock_set_up() { exec 9>&-; }
