"""The set-up's other parts, without a network: missing packages, failed steps, configure, help."""

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import ScriptCheckout

PACKAGES = """
# comment
have-it   command:bash            required
lib-one   command:no-such,other   required
lib-two   header:no/such.hpp      required
py-three  python:no_such_module   required
nice-one  command:no-such         optional
"""


def set_packages(checkout: "ScriptCheckout") -> None:
    (checkout.root / "scripts/lib/packages.txt").write_text(PACKAGES)


def test_missing_packages_without_root_are_named_with_the_command(
    checkout: "ScriptCheckout",
) -> None:
    set_packages(checkout)
    checkout.stub("id", "echo 1000")
    checkout.stub("apt-get", "echo 'apt-get must not run' >&2; exit 1")
    result = checkout.run("set_up_packages py-three; echo unreached")
    assert result.returncode == 2
    assert "lib-one lib-two\n" in result.stderr
    assert "sudo apt-get install --no-install-recommends lib-one lib-two" in result.stderr
    assert "must not run" not in result.stderr
    assert result.stdout == ""


def test_missing_packages_are_installed_by_root(checkout: "ScriptCheckout") -> None:
    set_packages(checkout)
    checkout.stub("id", "echo 0")
    checkout.stub("apt-get", f'echo "$@" >> "{checkout.root}/calls"')
    result = checkout.run("set_up_packages py-three")
    assert result.returncode == 0, result.stderr
    assert (checkout.root / "calls").read_text().splitlines() == [
        "update",
        "install --yes --no-install-recommends lib-one lib-two",
        "update",
        "install --yes --no-install-recommends nice-one",
    ]


def test_only_optional_packages_missing_is_no_error(checkout: "ScriptCheckout") -> None:
    set_packages(checkout)
    checkout.stub("id", "echo 1000")
    result = checkout.run("set_up_packages lib-one lib-two py-three")
    assert result.returncode == 0
    assert "nice-one" in result.stderr


def test_header_is_found_under_any_usual_prefix(checkout: "ScriptCheckout") -> None:
    header = checkout.root / "a prefix/include/no/such.hpp"
    header.parent.mkdir(parents=True)
    header.touch()
    check = "is_met header:no/such.hpp"
    assert checkout.run(check).returncode == 1
    assert checkout.run(check, {"ROCM_PATH": str(checkout.root / "a prefix")}).returncode == 0
    paths = f"/nowhere:{checkout.root / 'a prefix'}"
    assert checkout.run(check, {"CMAKE_PREFIX_PATH": paths}).returncode == 0


def test_library_and_header_of_python_are_recognised(checkout: "ScriptCheckout") -> None:
    checkout.stub("ldconfig", "printf '\tlibkept.so.4 (libc6,x86-64) => /lib/libkept.so.4'")
    assert checkout.run("is_met library:libother.so.1,libkept.so.4").returncode == 0
    assert checkout.run("is_met library:libkept.so").returncode == 1
    checkout.stub("ldconfig", "exit 1")
    assert checkout.run("is_met library:libkept.so.4").returncode == 1
    checkout.stub("python3", f"echo '{checkout.root}'")
    assert checkout.run("is_met python_header:Python.h").returncode == 1
    (checkout.root / "Python.h").touch()
    assert checkout.run("is_met python_header:Python.h").returncode == 0


def test_packages_that_a_command_does_without(checkout: "ScriptCheckout") -> None:
    set_packages(checkout)
    result = checkout.run("packages_but have-it lib-two")
    assert result.stdout.split() == ["lib-one", "py-three", "nice-one"]


def test_failed_step_names_itself_its_last_lines_and_its_log(checkout: "ScriptCheckout") -> None:
    code = "boom() { echo 'No space left on device'; false; echo unreached; }"
    (checkout.root / "scripts/lib/build.sh").open("a").write(code + "\n")
    result = checkout.run("require_step 'the title' boom boom; echo unreached")
    assert result.returncode == 2
    assert "this step failed (exit status 1): the title" in result.stderr
    assert "| No space left on device" in result.stderr
    assert str(checkout.root / ".deps/log/boom.log") in result.stderr
    assert "unreached" not in result.stdout + result.stderr


CACHE = """CMAKE_HOME_DIRECTORY:INTERNAL={root}
Torch_DIR:PATH=/t
CMAKE_BUILD_TYPE:STRING=Release
TINY_LLAMA_WITH_HIP:STRING={hip}
TINY_LLAMA_WARNINGS_AS_ERRORS:BOOL={errors}
"""


@pytest.mark.parametrize(
    ("surroundings", "kind", "preset"),
    [
        ({}, "cpu", "release"),
        ({"CI": "false"}, "rocm", "release"),
        ({"CI": "true"}, "cpu", "ci"),
        ({"CI": "true"}, "rocm", "ci"),
        ({"CI": "true"}, "cuda", "release"),
    ],
)
def test_only_ci_takes_warnings_for_errors(
    checkout: "ScriptCheckout", surroundings: dict[str, str], kind: str, preset: str
) -> None:
    # the headers of HIP, wherever they are, do not make a CI of a machine
    (checkout.root / "hip/include/hip").mkdir(parents=True)
    (checkout.root / "hip/include/hip/hip_runtime_api.h").touch()
    surroundings = surroundings | {"ROCM_PATH": str(checkout.root / "hip")}
    result = checkout.run(f"torch_kind={kind}; choose_preset", surroundings)
    assert result.stdout == f"{preset}\n"


@pytest.mark.parametrize(
    ("preset", "hip", "errors", "torch", "ninja", "status"),
    [
        ("ci", "ON", "ON", "/t", True, 0),
        ("release", "AUTO", "OFF", "/t", True, 0),
        ("release", "ON", "ON", "/t", True, 0),  # as preset ci left it
        ("ci", "AUTO", "ON", "/t", True, 1),
        ("ci", "ON", "OFF", "/t", True, 1),
        ("ci", "ON", "ON", "/other", True, 1),
        ("release", "ON", "ON", "/other", True, 1),
        ("ci", "ON", "ON", "/t", False, 1),  # an earlier configure failed
    ],
)
def test_configured_folder_is_recognised(
    checkout: "ScriptCheckout",
    preset: str,
    hip: str,
    errors: str,
    torch: str,
    ninja: bool,
    status: int,
) -> None:
    build = checkout.root / "build"
    build.mkdir()
    (build / "CMakeCache.txt").write_text(CACHE.format(root=checkout.root, hip=hip, errors=errors))
    if ninja:
        (build / "build.ninja").touch()
    result = checkout.run(
        f'torch_cmake_folder={torch}; is_configured {preset} "$project_root/build"'
    )
    assert result.returncode == status


@pytest.mark.parametrize("kept", ["", "ADDED:BOOL=OFF\n", "ADDED:BOOL=ON\n"])
def test_setting_that_a_command_needs_is_configured_once(
    checkout: "ScriptCheckout", kept: str
) -> None:
    build = checkout.root / "build"
    build.mkdir()
    cache = CACHE.format(root=checkout.root, hip="ON", errors="ON") + kept
    (build / "CMakeCache.txt").write_text(cache)
    (build / "build.ninja").touch()
    calls = checkout.root / "cmake_calls"
    checkout.stub("cmake", f'echo "$*" >>"{calls}"')
    code = 'torch_cmake_folder=/t; set_up_configured ci "$project_root/build" ADDED=ON'
    result = checkout.run(code)
    assert result.returncode == 0, result.stderr
    configured = calls.read_text().splitlines() if calls.exists() else []
    expected = f"--preset ci -B {build} -DADDED=ON -DTorch_DIR=/t"
    assert configured == ([] if "ON" in kept else [expected])


def test_our_own_warning_of_a_configure_is_shown(checkout: "ScriptCheckout") -> None:
    log = (
        "CMake Warning at /t/TorchConfig.cmake:2 (message):\n  of theirs\nCall Stack:\n  a\n"
        "CMake Warning at cmake/find_libtorch.cmake:4 (message):\n  of ours\nCall Stack:\n  b\n"
    )
    (checkout.root / "log").write_text(log)
    checkout.stub("cmake", f'cat "{checkout.root}/log"')
    code = 'torch_cmake_folder=/t; set_up_configured release "$project_root/build"'
    result = checkout.run(code)
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines()[2:] == ["   of ours"]


def test_without_apt_the_sources_are_left_to_cmake(checkout: "ScriptCheckout") -> None:
    checkout.stub("apt-get", "echo 'no network'; exit 100")
    checkout.stub("apt-cache", "exit 100")
    result = checkout.run("set_up_library_sources libfmt-dev")
    assert result.returncode == 0
    assert "downloads the rest from github.com: benchmark fmt" in result.stderr


def test_libraries_that_cannot_be_installed_are_taken_as_sources(
    checkout: "ScriptCheckout",
) -> None:
    packages = "libfmt-dev header:no/fmt.h source\nlibgtest-dev header:no/g.h source\n"
    (checkout.root / "scripts/lib/packages.txt").write_text(packages)
    checkout.stub("id", "echo 1000")
    code = 'set_up_packages libgtest-dev; sources_lacking "${libraries_not_installed[@]}"'
    result = checkout.run(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["benchmark benchmark 1.9.1", "fmt fmtlib 10.1.1"]
    checkout.stub("id", "echo 0")
    checkout.stub("apt-get", f'echo "$@" >> "{checkout.root}/calls"')
    result = checkout.run(code)
    assert result.stdout.splitlines() == ["benchmark benchmark 1.9.1"]
    assert (checkout.root / "calls").read_text().splitlines()[-1].endswith(" libfmt-dev")


def test_builds_with_every_library_as_source(project_root: Path, tmp_path: Path) -> None:
    """Without a network, and though all of them may be installed."""
    names = ("benchmark", "fmt", "nlohmann_json", "cli11", "googletest")
    sources = [project_root / ".deps" / "sources" / name for name in names]
    lacking = [path.name for path in sources if not (path / "CMakeLists.txt").is_file()]
    if lacking:
        pytest.skip(f"no sources here of {', '.join(lacking)}: the set-up found none to download")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(trial LANGUAGES CXX)\n"
        "set(CMAKE_CXX_STANDARD 20)\nset(TINY_LLAMA_BUILD_TESTS ON)\nenable_testing()\n"
        f'set(PROJECT_SOURCE_DIR "{project_root}")\n'
        f'include("{project_root}/cmake/find_dependencies.cmake")\n'
        "add_executable(trial trial.cpp)\n"
        "target_link_libraries(trial fmt::fmt-header-only nlohmann_json::nlohmann_json\n"
        "  CLI11::CLI11 benchmark::benchmark GTest::gtest_main)\n"
    )
    (tmp_path / "trial.cpp").write_text(
        "#include <benchmark/benchmark.h>\n#include <fmt/format.h>\n#include <gtest/gtest.h>\n"
        "#include <CLI/CLI.hpp>\n#include <nlohmann/json.hpp>\n"
        "TEST(Trial, HasAll) {\n  CLI::App app;\n"
        '  EXPECT_EQ(fmt::format("{}", nlohmann::json(3).dump()), "3");\n'
        "  EXPECT_FALSE(benchmark::GetBenchmarkVersion().empty());\n}\n"
    )
    never = "-DFETCHCONTENT_TRY_FIND_PACKAGE_MODE=NEVER"
    offline = "-DFETCHCONTENT_FULLY_DISCONNECTED=ON"
    configure = ["cmake", "-G", "Ninja", "-S", str(tmp_path), "-B", str(tmp_path / "b"), never]
    for command in (
        [*configure, offline, "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", str(tmp_path / "b"), "--target", "trial"],
        [str(tmp_path / "b" / "trial")],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    cache = (tmp_path / "b" / "CMakeCache.txt").read_text()
    assert cache.count("FETCHCONTENT_SOURCE_DIR_") >= len(names)


def test_help_needs_no_set_up(project_root: Path) -> None:
    for script in ("bench", "test", "compare"):
        result = subprocess.run(
            ["bash", str(project_root / "scripts" / script), "--help"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == 0
        assert f"scripts/{script}" in result.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bogus"], "'--bogus'; allowed: --long, --sanitize"),
        (["--torch-dir"], "--torch-dir needs a folder"),
        (
            ["--torch-dir", "/no/such"],
            "--torch-dir '/no/such' must be <libtorch>/share/cmake/Torch",
        ),
        (["--torch-dir", "/", "--sanitize"], "exclude each other"),
    ],
)
def test_bad_option_of_scripts_test(project_root: Path, options: list[str], said: str) -> None:
    result = subprocess.run(
        ["bash", str(project_root / "scripts/test"), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert said in result.stderr
