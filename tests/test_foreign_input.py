"""Input that others made or damaged, and output that cannot take what is said: of every command
that reads results, as processes with real pipes. None may end with a traceback."""

import copy
import os
import shutil
from pathlib import Path

import pytest

from built_programs import (
    Completed,
    Json,
    environment,
    finish,
    read_json,
    start,
    start_tool,
    tool,
    write_json,
)
from published import MEASURED, STUDY, document, write_run, write_world
from tinyllama_tools.core.app import command_text, without_folders
from tools import compare, report, scaling

# half of a surrogate pair, a letter and a picture; and how each is written where it cannot be
ODD, ESCAPED = "\udc80 é 😀", r"\udc80 \xe9 \U0001f600"
ASCII = {"PYTHONIOENCODING": "ascii"}
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
STRICT_UTF8 = {"PYTHONIOENCODING": "utf-8"}


def ended(folder: Path, *words: object, **more: str) -> Completed:
    """The command of these words."""
    return finish(start_tool(*words, cwd=folder, env=environment(**more)))


def test_text_beyond_the_encoding_of_a_terminal_is_written_as_its_escape(tmp_path: Path) -> None:
    """And in a page, which is UTF-8, the half of a pair as a question mark."""
    made, ranks = read_json(MEASURED), document(1, 2)
    for of in (made, ranks):
        of["context"]["device"]["name"] = f"CPU {ODD}"
    odd, world = write_json(tmp_path / "odd.json", made), write_world(tmp_path, 1, ranks)
    compared = ("compare", MEASURED, odd)
    for words, surroundings, said in (
        (compared, ASCII, ESCAPED),
        (compared, C_LOCALE, ESCAPED),
        (compared, STRICT_UTF8, ODD.replace("\udc80", r"\udc80")),
        ((*compared, "--format", "md"), ASCII, r"\u26aa"),
        (("compare", "history", "add", odd, "--store", "store"), ASCII, ESCAPED),
        (("compare", "history", "show", "--store", "store"), C_LOCALE, ESCAPED),
        (("report", odd, "--format", "md"), ASCII, ESCAPED),
        (("report", odd, "--format", "csv"), C_LOCALE, ESCAPED),
        (("scaling", "--from", world), ASCII, ESCAPED),
        # and what a user typed
        (("compare", MEASURED, f"é {ODD[1:]}"), C_LOCALE, "cannot be read"),
    ):
        completed = ended(tmp_path, *words, **surroundings)
        told = completed.stdout + completed.stderr
        status = 2 if said == "cannot be read" else 0
        assert (completed.returncode, "Traceback" in told) == (status, False), told
        assert said in told
    assert report([odd, "-o", tmp_path / "page.html"]) == 0
    assert ODD.replace("\udc80", "?") in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "2>&- >&-"])
def test_an_output_that_is_closed(tmp_path: Path, closed: str) -> None:
    """Standard output: said before anything is done, with a status of its own. Standard error: what
    would be said there goes nowhere, least of all into the results."""
    start_it = tool("compare", MEASURED, MEASURED, "--format", "json", "--out", "out")
    completed = finish(start(["bash", "-c", f'"$@" {closed}', "_", *start_it], cwd=tmp_path))
    if closed == "2>&-":
        assert (completed.returncode, completed.stderr) == (0, "")
        assert completed.stdout == (tmp_path / "out/comparison.json").read_text("utf-8")
        return
    assert (completed.returncode, completed.stdout) == (2, "")
    assert not (tmp_path / "out").exists()
    said = "scripts/compare: standard output is closed; give it a file, such as /dev/null\n"
    assert completed.stderr == ("" if "2" in closed else said)


def test_output_that_nobody_reads_changes_no_outcome_and_a_full_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much there is to say: what fits into a buffer, which fails when all is said, and what
    no buffer holds. The rest is done."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    slower = with_number(tmp_path / "slower.json", read_json(MEASURED), "real_time", 1.0)
    ranks, store = write_run(tmp_path / "ranks", (1,)), ("--store", "store")
    (tmp_path / "lacking.json").write_text(slower.read_text().replace("full_step/", "full_stop/"))
    compared = ("compare", MEASURED, MEASURED)
    for words, is_full, status, said in (
        (("compare", "history", "add", MEASURED, *store), False, 0, ""),
        (("compare", "history", "show", *store), False, 0, ""),
        ((*compared, "--out", "out", "--format", "json"), False, 0, "out/comparison.html\n"),
        (("compare", MEASURED, "lacking.json"), False, 1, ""),
        ((*compared, "--help"), False, 0, ""),
        (("report", MEASURED, "--format", "csv"), False, 0, ""),
        (("scaling", "--from", ranks), False, 0, ""),
        (compared, True, 2, "scripts/compare: output: No space left on device\n"),
        (("report", MEASURED, "--format", "csv"), True, 2, ": No space left on device\n"),
    ):
        reader, output = os.pipe()
        os.close(reader)
        if is_full:
            os.dup2(os.open("/dev/full", os.O_WRONLY), output)
        completed = finish(start_tool(*words, cwd=tmp_path, stdout=output))
        os.close(output)
        assert completed.returncode == status and completed.stderr.endswith(said), words
        for wrong in ("Traceback", "Exception ignored", "roken pipe"):
            assert wrong not in completed.stderr
    assert (ranks / "scaling.md").exists()


# a counter may be 0 or less, and what is no number is no counter
WRONG = [("real_time", value) for value in (0, -1, "5", None)]
WRONG += [(key, of) for key in ("real_time", "TFLOPS") for of in (1e308, 1e-320, float("nan"))]


def with_number(path: Path, made: Json, key: str, value: object) -> Path:
    """The file with this in every row."""
    rows = [row | {key: value} for row in made["benchmarks"]]
    return write_json(path, made | {"benchmarks": rows})


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_numbers_that_no_machine_has(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], key: str, value: object
) -> None:
    """Each is named with its row and file; nothing is computed from it, so that no library below
    says anything either."""
    bad = with_number(tmp_path / "bad.json", read_json(MEASURED), key, value)
    world = with_number(tmp_path / "ranks_2.json", document(2, 2), key, value)
    for run in (
        lambda: compare([str(MEASURED), str(bad)]),
        lambda: compare(["--base", str(MEASURED), "--new", str(bad), "--format=json"]),
        lambda: compare(["history", "add", str(bad), f"--store={tmp_path}/store"]),
        lambda: report([bad, "--format=md", "-o", tmp_path / "page.md"]),
        lambda: scaling(["--from", world]),
    ):
        assert run() == 2
        said, why = capfd.readouterr()
        assert (said, "not foreseen" in why) == ("", False), why
        assert key in why and ".json" in why


def test_rounds_with_such_numbers_cost_themselves_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is beside them in the study is reported."""
    study = tmp_path / "study"
    shutil.copytree(STUDY, study)
    spoilt = zip(sorted(study.glob("round_*.json")), WRONG[::3], strict=False)
    files = [with_number(path, read_json(path), *of).name for path, of in spoilt]
    assert report([study, "--format=md", "-o", tmp_path / "page.md"]) == 1
    said, why = capfd.readouterr()
    assert (said, "not foreseen" in why) == ("", False), why
    assert len(files) == 3 and [name for name in files if name not in why] == []


def test_what_is_published_names_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever that is called, and whether it is there."""
    here, home = tmp_path / "work", tmp_path / "Jane Doe (é), x's" / "of=us"
    for folder in (here, home / "a run"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(here)
    for text, published in (
        ("--data=/home/somebody/tokens.bin", "--data=tokens.bin"),
        ("/home/somebody/a.so:/opt/b/ 1/2 / 3", "a.so:b 1/2 / 3"),
        ("tcp://node:29500", "tcp://node:29500"),
        (f"{here}/results/my run/a.json", "results/my run/a.json"),
        (f"{home}/a.json: is empty; {home}/a run/b c.json", "a.json: is empty; b c.json"),
    ):
        assert without_folders(text) == published
    monkeypatch.chdir("/")
    assert without_folders(f"{home}/a run/b.json") == "b.json"
    words = ["scripts/scaling", "--from=/no such folder/a run", "/not/there yet/b"]
    assert command_text(words) == "scripts/scaling '--from=a run' b"
    (write_run(home / "a run", (1,)) / "ranks_2.json").touch()
    assert scaling([f"--from={home}/a run"]) == 1
    for file in ("scaling.json", "scaling.md"):
        text = (home / "a run" / file).read_text("utf-8")
        assert "ranks_2.json: is empty" in text and "a run" in text
        assert "Jane" not in text and "of=us" not in text


# keys of a context, and what they are not
CONTEXTS = [
    *(("device", "gpu0"), ("device", {"name": ["x"]}), ("device", {"architecture": 5})),
    *(("settings", "fast"), ("threads", "8"), ("threads", [1]), ("num_cpus", [1]), ("peaks", "x")),
    *(("host_name", [1]), ("torch_version", 2), ("git_commit", {}), ("date", 5)),
]


@pytest.mark.parametrize(("key", "value"), CONTEXTS)
def test_contexts_that_say_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: object
) -> None:
    """Of the suite, of several ranks, and of another program, which may call its own things so.
    What the history took can be shown."""
    made, ranks = read_json(MEASURED), document(1, 2)
    for of in (made, ranks):
        own = of["context"].get(key)
        both = isinstance(own, dict) and isinstance(value, dict)
        of["context"][key] = own | value if both else value
    ours = write_json(tmp_path / "ours.json", made)
    other = copy.deepcopy(made)
    del other["context"]["schema_version"]
    foreign, world = write_json(tmp_path / "foreign.json", other), write_world(tmp_path, 1, ranks)
    for number, file in enumerate((ours, foreign)):
        store = f"--store={tmp_path}/store_{number}"
        assert compare([str(MEASURED), str(file)]) in ((0, 2) if file == ours else (0,))
        if compare(["history", "add", str(file), store]) == 0:
            assert compare(["history", "show", store]) == 0
            assert compare(["history", "changes", store]) == 0
        assert report([file, "--format=md", "-o", tmp_path / "page.md"]) in (0, 1, 2)
    assert scaling(["--from", world]) in (0, 1, 2)
    said = capsys.readouterr().err
    assert "not foreseen" not in said, said
