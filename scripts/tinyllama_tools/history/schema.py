"""The tables of the history: rows are added, never changed and never removed."""

from __future__ import annotations

# "tlhi": tells the file from other programs' databases.
APPLICATION_ID = 0x746C6869
SCHEMA_VERSION = 1

TABLES = (
    """CREATE TABLE results (
  number INTEGER PRIMARY KEY,
  file TEXT NOT NULL,
  digest TEXT NOT NULL UNIQUE,
  device TEXT NOT NULL,
  architecture TEXT NOT NULL,
  threads INTEGER NOT NULL CHECK (threads > 0),
  git_commit TEXT NOT NULL,
  git_dirty INTEGER NOT NULL CHECK (git_dirty IN (0, 1)),
  commit_time TEXT NOT NULL,
  date TEXT NOT NULL,
  added TEXT NOT NULL,
  context TEXT NOT NULL
)""",
    """CREATE TABLE cases (
  result INTEGER NOT NULL REFERENCES results (number),
  name TEXT NOT NULL,
  seconds REAL CHECK (seconds > 0),
  repetitions INTEGER NOT NULL,
  counters TEXT NOT NULL,
  reason TEXT NOT NULL,
  PRIMARY KEY (result, name)
) WITHOUT ROWID""",
)

# INSERT OR REPLACE removes a row without asking the triggers of DELETE, so rows that exist are
# refused before that.
REFUSED = {
    "results_are_not_replaced": (
        "INSERT ON results WHEN EXISTS "
        "(SELECT 1 FROM results WHERE digest = NEW.digest OR number = NEW.number)",
        "this result is in it",
    ),
    "cases_are_not_replaced": (
        "INSERT ON cases WHEN EXISTS "
        "(SELECT 1 FROM cases WHERE result = NEW.result AND name = NEW.name)",
        "this case is in it",
    ),
    "results_are_not_changed": ("UPDATE ON results", "no UPDATE"),
    "cases_are_not_changed": ("UPDATE ON cases", "no UPDATE"),
    "results_are_not_removed": ("DELETE ON results", "no DELETE"),
    "cases_are_not_removed": ("DELETE ON cases", "no DELETE"),
}


def _trigger(name: str, when: str, why: str) -> str:
    refusal = f"SELECT RAISE(ABORT, 'the history is append-only: {why}')"
    return f"CREATE TRIGGER {name} BEFORE {when} BEGIN {refusal}; END"


STATEMENTS = (
    *TABLES,
    *(_trigger(name, when, why) for name, (when, why) in REFUSED.items()),
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
