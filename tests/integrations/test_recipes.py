"""The recipes of Spack and conda, and the module file: versions, lower bounds and options are
those of the project.

Spack's is executed with fakes of its directives, which is less than Spack does: README.md says when
Spack itself concretised it. conda's is rendered by rattler-build, for each of its variants.
"""

import importlib.util
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import rattler_build
import yaml

from built_programs import PROJECT_ROOT

FOLDER = PROJECT_ROOT / "integrations"
VERSION = (PROJECT_ROOT / "VERSION").read_text(encoding="utf-8").strip()
CMAKE_FILES = [PROJECT_ROOT / "CMakeLists.txt", *sorted((PROJECT_ROOT / "cmake").glob("*.cmake"))]
CMAKE = "\n".join(path.read_text(encoding="utf-8") for path in CMAKE_FILES)


def lower_bounds() -> dict[str, str]:
    """What the build asks for, by Spack's names."""
    bounds = {
        "cmake": r"cmake_minimum_required\(VERSION (\S+)\)",
        "py-torch": r"set\(TINY_LLAMA_TORCH_MINIMUM (\S+)\)",
        "nlohmann-json": r"tiny_llama_dependency\(nlohmann_json nlohmann_json (\S+)",
        "cli11": r"tiny_llama_dependency\(cli11 CLI11 (\S+)",
        "benchmark": r"tiny_llama_dependency\(benchmark benchmark (\S+)",
    }
    return {name: re.search(pattern, CMAKE)[1] for name, pattern in bounds.items()}


def refused(options: dict[str, str]) -> list[str]:
    """Those that CMake would not know, or whose value it would not take."""
    wrong = []
    for name, value in options.items():
        values = re.search(rf"{name} MATCHES \"\^\((\S+)\)\$\"", CMAKE)
        declared = re.search(rf"^ *\w+\({name}\s", CMAKE, re.MULTILINE)
        known = declared or name == "Torch_DIR" or name.startswith("CMAKE_")
        if not known or (values and value not in values[1].split("|")):
            wrong.append(f"{name}={value}")
    return wrong


def test_what_is_refused() -> None:
    assert refused({"TINY_LLAMA_WITH_HIP": "ON", "TINY_LLAMA_BUILD_TESTS": "OFF"}) == []
    wrong = {"TINY_LLAMA_WITH_HIP": "YES", "TINY_LLAMA_BUILD_TEST": "OFF"}
    assert refused(wrong) == ["TINY_LLAMA_WITH_HIP=YES", "TINY_LLAMA_BUILD_TEST=OFF"]


# ---- Spack

REPOSITORY = FOLDER / "spack/spack_repo/tiny_llama"
RECIPE = REPOSITORY / "packages/tiny_llama_bench/package.py"
CUDA_ARCHS = ("80", "90", "90a", "100", "120f")
AMD_TARGETS = ("gfx90a", "gfx942")


@dataclass
class Package:
    """A package of a spec: its prefix, and where libtorch's CMake files are."""

    name: str

    @property
    def prefix(self) -> SimpleNamespace:
        bin_folder = SimpleNamespace(nvcc=f"/{self.name}/bin/nvcc", hipcc=f"/{self.name}/bin/hipcc")
        return SimpleNamespace(bin=bin_folder)

    @property
    def package(self) -> SimpleNamespace:
        return SimpleNamespace(cmake_prefix_paths=[f"/{self.name}/share/cmake"])


@dataclass
class Spec:
    chosen: set[str]
    archs: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def satisfies(self, text: str) -> bool:
        return text in self.chosen

    def __getitem__(self, name: str) -> Package:
        return Package(name)

    @property
    def variants(self) -> dict[str, SimpleNamespace]:
        return {name: SimpleNamespace(value=value) for name, value in self.archs.items()}


class CMakePackage:
    run_tests = False

    def define(self, name: str, value: bool | str) -> str:
        if isinstance(value, bool):
            return f"-D{name}:BOOL={'ON' if value else 'OFF'}"
        return f"-D{name}:STRING={value}"


class CudaPackage:
    cuda_arch_values = CUDA_ARCHS


class ROCmPackage:
    amdgpu_targets = AMD_TARGETS


@pytest.fixture(scope="module")
def spack() -> SimpleNamespace:
    """The class of package.py, and what its directives said: arguments and condition, by name."""
    calls: dict[str, list[tuple[tuple[Any, ...], str]]] = {}
    inside: list[str] = []

    def directive(name: str, *allowed: str) -> Callable[..., None]:
        def call(*given: object, when: str = "", **named: object) -> None:
            assert set(named) <= set(allowed), (name, named)
            condition = " ".join(filter(None, [*inside, when]))
            calls.setdefault(name, []).append((given, condition))

        return call

    class When(AbstractContextManager):
        def __init__(self, condition: str) -> None:
            self.condition = condition

        def __enter__(self) -> None:
            inside.append(self.condition)

        def __exit__(self, *_: object) -> None:
            inside.pop()

    package = ModuleType("spack.package")
    vars(package).update(
        version=directive("version"),
        variant=directive("variant", "default", "description"),
        depends_on=directive("depends_on", "type"),
        conflicts=directive("conflicts", "msg"),
        license=directive("license"),
        generator=directive("generator"),
        when=When,
    )
    modules = {"spack": ModuleType("spack"), "spack.package": package}
    parent = "spack_repo.builtin.build_systems"
    for end in range(1, 4):
        name = ".".join(parent.split(".")[:end])
        modules[name] = ModuleType(name)
    for name, base in (("cmake", CMakePackage), ("cuda", CudaPackage), ("rocm", ROCmPackage)):
        modules[f"{parent}.{name}"] = ModuleType(name)
        vars(modules[f"{parent}.{name}"])[base.__name__] = base
    spec = importlib.util.spec_from_file_location("spack_recipe", RECIPE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch, nullcontext():
        for name, fake in modules.items():
            patch.setitem(sys.modules, name, fake)
        spec.loader.exec_module(module)
    return SimpleNamespace(recipe=module.TinyLlamaBench, calls=calls)


def test_spacks_repository_is_where_spack_looks() -> None:
    """Package API v2: below spack_repo/, whose sub-folders are the namespace."""
    repository = yaml.safe_load((REPOSITORY / "repo.yaml").read_text(encoding="utf-8"))["repo"]
    assert repository["api"] == "v2.0"
    assert REPOSITORY.parent.name == "spack_repo" and REPOSITORY.name == repository["namespace"]
    (only,) = (REPOSITORY / "packages").iterdir()
    assert only == RECIPE.parent


def test_spacks_recipe_asks_for_what_the_build_asks_for(spack: SimpleNamespace) -> None:
    assert [given for given, _ in spack.calls["version"]] == [(VERSION,)]
    wanted = dict(
        re.match(r"([a-z0-9-]+)@([0-9.]+):", given[0]).groups()
        for given, condition in spack.calls["depends_on"]
        if "@" in given[0] and condition == ""
    )
    assert wanted.items() >= lower_bounds().items()
    project = (PROJECT_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    tools = re.search(r"^tools = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)[1]
    packages = {"numpy", *re.findall(r'["\'](\w+)==', tools)}
    assert {f"py-{name}" for name in packages} <= wanted.keys()


@pytest.mark.parametrize(
    ("chosen", "gpu", "options"),
    [
        ((), None, {"TINY_LLAMA_WITH_CUDA": "OFF", "TINY_LLAMA_WITH_HIP": "OFF"}),
        (
            ("+cuda",),
            "cuda_arch",
            {
                "TINY_LLAMA_WITH_CUDA": "AUTO",
                "TINY_LLAMA_WITH_HIP": "OFF",
                "TINY_LLAMA_CUDA_ARCHITECTURES": "8.0;9.0;9.0a;10.0;12.0f",
                "TINY_LLAMA_NVCC": "/cuda/bin/nvcc",
            },
        ),
        (
            ("+rocm",),
            "amdgpu_target",
            {
                "TINY_LLAMA_WITH_CUDA": "OFF",
                "TINY_LLAMA_WITH_HIP": "ON",
                "TINY_LLAMA_HIP_ARCHITECTURES": "gfx90a;gfx942",
                "TINY_LLAMA_HIPCC": "/hip/bin/hipcc",
            },
        ),
    ],
    ids=["cpu", "cuda", "rocm"],
)
def test_spacks_options_are_cmakes(
    spack: SimpleNamespace, chosen: tuple[str, ...], gpu: str | None, options: dict[str, str]
) -> None:
    archs = {"cuda_arch": CUDA_ARCHS, "amdgpu_target": AMD_TARGETS}
    recipe = spack.recipe()
    recipe.spec = Spec(set(chosen), {gpu: archs[gpu]} if gpu else {})
    given = dict(re.match(r"-D(\w+):\w+=(.*)", text).groups() for text in recipe.cmake_args())
    assert given.items() >= options.items()
    assert refused(given) == []
    assert given["Torch_DIR"] == "/py-torch/share/cmake/Torch"
    # of a GPU's libtorch: the same architectures in all that has kernels
    if gpu:
        asked = {(given[0], when) for given, when in spack.calls["depends_on"]}
        asked_when = f"{chosen[0]} {gpu}={archs[gpu][0]}"
        assert (f"py-torch {gpu}={archs[gpu][0]}", asked_when) in asked
        assert ((f"{gpu}=none",), chosen[0]) in spack.calls["conflicts"]


# ---- conda

CONDA = FOLDER / "conda"


def rendered(**change: str) -> list[dict[str, Any]]:
    """As rattler-build would build it, by variant; with words of the recipe changed."""
    text = (CONDA / "recipe.yaml").read_text(encoding="utf-8")
    for old, new in change.items():
        text = text.replace(old, new)
    variants = rattler_build.VariantConfig.from_file(str(CONDA / "variants.yaml"))
    platform = rattler_build.PlatformConfig(target_platform="linux-64")
    recipe = rattler_build.Stage0Recipe.from_yaml(text)
    found = recipe.render(variants, rattler_build.RenderConfig(platform))
    return [one.recipe.to_dict() | {"cuda": one.recipe.context["cuda"]} for one in found]


def names_and_versions(lines: list[str]) -> dict[str, str]:
    return {line.split()[0]: line.partition(" ")[2] for line in lines}


def test_condas_recipe_is_one_for_rattler_build() -> None:
    with_cuda, without = sorted(rendered(), key=lambda recipe: recipe["cuda"])
    for recipe, cuda in ((with_cuda, "AUTO"), (without, "OFF")):
        assert recipe["cuda"] == cuda
        assert recipe["package"] == {"name": "tiny-llama-bench", "version": VERSION}
        source = Path(CONDA, recipe["source"][0]["path"]).resolve()
        assert source == PROJECT_ROOT
        script = "\n".join(recipe["build"]["script"]).replace("${{ cuda }}", cuda)
        options = [word[2:].partition("=")[::2] for word in shlex.split(script) if word[:2] == "-D"]
        assert refused(dict(options)) == []
        assert dict(options)["TINY_LLAMA_WITH_CUDA"] == cuda
        lists = recipe["requirements"]
        bounds = names_and_versions(lists["build"]) | names_and_versions(lists["host"])
        assert ("nccl" in bounds) == (cuda == "AUTO")
        for name, version in lower_bounds().items():
            conda_name = {"py-torch": "libtorch", "nlohmann-json": "nlohmann_json"}.get(name, name)
            lines = [*lists["build"], *lists["host"]]
            assert f"{conda_name} >={version}" in lines
    with pytest.raises(rattler_build.RattlerBuildError):
        rendered(requirements="requirement")


def test_both_recipes_ask_for_the_same_tools(spack: SimpleNamespace) -> None:
    asked = {
        given[0].removeprefix("py-").replace("@", " >=").rstrip(":")
        for given, _ in spack.calls["depends_on"]
        if given[0].startswith("py-") and "torch" not in given[0]
    }
    run = set(rendered()[0]["requirements"]["run"])
    assert run - {"python >=3.10"} == asked


def test_the_module_file_is_of_this_version() -> None:
    """Lmod takes the version from the file's name."""
    (module,) = (FOLDER / "modules").rglob("*.lua")
    assert module.relative_to(FOLDER / "modules").as_posix() == f"tiny-llama-bench/{VERSION}.lua"
