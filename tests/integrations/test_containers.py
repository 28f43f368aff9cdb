"""The two container definitions: that they say the same, and, with --long, every line of theirs run
in chroots, since no container engine is needed for that."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from built_programs import PROJECT_ROOT, finish, give_up, start

FOLDER = PROJECT_ROOT / "integrations/containers"
INSTALL = FOLDER / "install.sh"


@dataclass
class Stage:
    """What a definition does on one image."""

    base: str
    # from which stage ("" is the checkout), what, where to
    copies: list[tuple[str, str, str]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    # without arguments of the user's
    command: list[str] = field(default_factory=list)


def docker_stages(text: str) -> list[Stage]:
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    entry: list[str] = []
    for line in (line for line in text.splitlines() if line and not line.startswith("#")):
        word, rest = line.split(maxsplit=1)
        if word == "ARG":
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif word == "FROM":
            image = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], rest)
            stages.append(Stage(image.split(" AS ")[0]))
            entry = []
        elif word == "COPY":
            origin = re.match(r"--from=(\S+) ", rest)
            what, where = rest.removeprefix(origin[0] if origin else "").split()
            stages[-1].copies.append((origin[1] if origin else "", what, where))
        elif word == "RUN":
            stages[-1].commands.append(rest)
        elif word == "ENV":
            name, _, value = rest.partition("=")
            stages[-1].environment[name] = value
        elif word == "ENTRYPOINT":
            entry = json.loads(rest)
        elif word == "CMD":
            stages[-1].command = [*entry, *json.loads(rest)]
        else:
            assert word == "WORKDIR", line
    return stages


def apptainer_stages(text: str) -> list[Stage]:
    stages: list[Stage] = []
    for part in re.split(r"^(?=Bootstrap:)", text, flags=re.MULTILINE)[1:]:
        header, *sections = re.split(r"^%", part, flags=re.MULTILINE)
        keys = dict(re.findall(r"^(\w+): (.+)$", header, re.MULTILINE))
        assert keys["Bootstrap"] == "docker"
        bodies: dict[str, list[str]] = {}
        for section in sections:
            name, *lines = (line.strip() for line in section.splitlines())
            bodies[name] = [line for line in lines if line]
        (argument,) = bodies.pop("arguments")
        name, _, value = argument.partition("=")
        stage = Stage(keys["From"].replace(f"{{{{ {name} }}}}", value))
        for section, lines in bodies.items():
            kind, *origin = section.split(" from ")
            if kind == "files":
                pairs = (tuple(line.split()) for line in lines)
                stage.copies += [(origin[0] if origin else "", *pair) for pair in pairs]
            elif kind == "post":
                stage.commands += lines
            elif kind == "environment":
                pairs = (line.removeprefix("export ").partition("=") for line in lines)
                stage.environment |= {name: value for name, _, value in pairs}
            else:
                assert kind == "runscript"
                default = re.fullmatch(r"if \[ \$# -eq 0 \]; then set -- (.+); fi", lines[0])
                assert default is not None and lines[1].startswith("exec ")
                program = lines[1].removeprefix("exec ").removesuffix(' "$@"')
                stage.command = [program, *default[1].split()]
        stages.append(stage)
    return stages


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    return docker_stages((FOLDER / "Dockerfile").read_text(encoding="utf-8"))


def test_both_definitions_have_the_same_steps(stages: list[Stage]) -> None:
    text = (FOLDER / "tiny_llama.def").read_text(encoding="utf-8")
    assert apptainer_stages(text) == stages
    build, final = stages
    assert build.base == final.base and build.commands and final.commands
    assert final.command == ["tiny-llama", "bench", "--quick"]


def test_the_steps_are_those_of_the_script(stages: list[Stage]) -> None:
    steps = set(re.findall(r"^  (\w+)\)$", INSTALL.read_text(encoding="utf-8"), re.MULTILINE))
    used = {shlex.split(command)[2] for stage in stages for command in stage.commands}
    assert used == steps
    for arguments in ([], ["bild"]):
        done = finish(start(["bash", str(INSTALL), *arguments]))
        assert done.returncode == 2 and "build <prefix> or run" in done.stderr


def own_mirror() -> str:
    """Where this machine's apt has Debian from."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)"]
    done = subprocess.run([*command, "Origin: Debian"], capture_output=True, text=True, check=False)
    found = re.search(r"^(\S+) main$", done.stdout, re.MULTILINE)
    return found[1] if found else ""


def own_index() -> str:
    """From which this machine's pip takes packages as well: where it has torch for CPUs."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.extra-index-url"]
    return finish(start(command)).stdout.strip()


# Runs a command in a chroot; what is mounted for it ends with it.
IN_CHROOT = """
for folder in /proc $2; do
  mkdir -p "$0$folder"
  mount --rbind "$folder" "$0$folder"
done
exec chroot "$0" env -i HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  PIP_CERT=/etc/own_authorities.crt SSL_CERT_FILE=/etc/own_authorities.crt \
  PIP_EXTRA_INDEX_URL="$3" bash -c "$1"
"""


def in_chroot(root: Path, command: str, minutes: float) -> str:
    words = ["unshare", "--mount", "--propagation", "private", "bash", "-euc", IN_CHROOT]
    index = own_index()
    folders = " ".join(sorted(set(re.findall(r"file://(/[^/\s]+)", index))))
    done = finish(start([*words, str(root), command, folders, index]), timeout=60 * minutes)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def make_root(root: Path, mirror: str) -> None:
    """A Debian 12 as small as its image, with this machine's way to the network."""
    make = ["debootstrap", "--variant=minbase", "bookworm", str(root), mirror]
    done = finish(start(["unshare", "--mount", "--propagation", "private", *make]), timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:]
    for file in ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf"):
        if Path(file).is_file():
            shutil.copy(file, root / file[1:])
    own = Path.home() / ".config/pip/pip.conf"
    if own.is_file():
        (root / "root/.config/pip").mkdir(parents=True)
        shutil.copy(own, root / "root/.config/pip/pip.conf")
    # not where Debian's package of authorities writes its own
    authorities = os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
    shutil.copy(authorities, root / "etc/own_authorities.crt")


@pytest.mark.long
def test_every_line_runs_in_a_chroot(stages: list[Stage], tmp_path: Path) -> None:
    """Each stage on a Debian of its own, then what a container would do without arguments."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None or not own_mirror():
        give_up("a chroot takes root, debootstrap and a mirror of Debian that apt knows")
    assert stages[0].base == "debian:12"
    checkout = tmp_path / "checkout"
    clone = ["git", "-c", "safe.directory=*", "clone", "--quiet", str(PROJECT_ROOT), str(checkout)]
    subprocess.run(clone, check=True)
    names = ["", "build", "final"]
    roots = {"": checkout} | {name: tmp_path / name for name in names[1:]}
    make_root(roots["build"], own_mirror())
    subprocess.run(["cp", "-a", str(roots["build"]), str(roots["final"])], check=True)
    for name, stage in zip(names[1:], stages, strict=True):
        for origin, what, where in stage.copies:
            source, target = roots[origin] / what.lstrip("/"), roots[name] / where[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-aT", str(source), str(target)], check=True)
        for command in stage.commands:
            in_chroot(roots[name], command, 90)
    settings = "".join(f"export {name}={text}; " for name, text in stages[1].environment.items())
    (roots["final"] / "study").mkdir()
    shown = in_chroot(roots["final"], f"{settings}cd /study; {shlex.join(stages[1].command)}", 20)
    assert "full_step" in shown
    (results,) = (roots["final"] / "study/results").glob("*/results.json")
    assert json.loads(results.read_text(encoding="utf-8"))["benchmarks"]
