"""What pyproject.toml, environment.yml, constraints.txt and the tools' settings say about the environment agrees."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
CONDA_NAMES = {
    "torch": "pytorch",
    "matplotlib": "matplotlib-base",
    "jupyter-client": "jupyter_client",
    "jupyter-core": "jupyter_core",
}
# Where a distribution is imported by another name than its own, capitals and underscores aside.
IMPORT_NAMES = {"bs4": "beautifulsoup4"}
CONDA_ONLY = {"pip"}
# These speak for themselves; every other dependency says in a comment why it earns its place.
CORE = {"torch", "polars", "pyarrow", "matplotlib", "jupyterlab", "ipywidgets", "papermill"}


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def environment():
    return yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))


def requirements(*extras):
    """Requirements of the package and of these extras, as {name: SpecifierSet}."""
    lines = [
        *project()["dependencies"],
        *(line for extra in extras for line in project()["optional-dependencies"][extra]),
    ]
    parsed = [Requirement(line) for line in lines]
    assert len({requirement.name for requirement in parsed}) == len(parsed), "a dependency is listed twice"
    return {requirement.name: requirement.specifier for requirement in parsed}


def conda_specifiers(environment):
    """Conda packages of an environment.yml, as {name: SpecifierSet}; a build string after the version is left out."""
    split = [line.split() for line in environment["dependencies"] if isinstance(line, str)]
    return {name: SpecifierSet(rest[0] if rest else "") for name, *rest in split}


def pins():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert len({name for name, _ in pairs}) == len(pairs), "a package is pinned twice"
    return {name: Version(version) for name, version in pairs}


def test_conda_environment_has_the_same_names_and_bounds():
    wanted = {CONDA_NAMES.get(name, name): specifier for name, specifier in requirements("dev").items()}
    wanted["python"] = SpecifierSet(project()["requires-python"])
    found = conda_specifiers(environment())
    assert {name: specifier for name, specifier in found.items() if name not in CONDA_ONLY} == wanted


def test_conda_environment_takes_conda_forge_and_installs_only_this_package_by_pip():
    assert environment()["name"] == project()["name"]
    assert environment()["channels"] == ["conda-forge", "nodefaults"]
    assert [line for line in environment()["dependencies"] if isinstance(line, dict)] == [{"pip": ["-e ."]}]
    assert "pip" in environment()["dependencies"]


def test_build_string_is_no_bound():
    assert conda_specifiers({"dependencies": ["pytorch >=2.6 cuda*", "pip"]}) == {
        "pytorch": SpecifierSet(">=2.6"),
        "pip": SpecifierSet(),
    }


def test_extras():
    assert set(project()["optional-dependencies"]) == {"dev", "trackers", "real-inputs"}


@pytest.mark.parametrize("name", requirements("dev", "trackers", "real-inputs"))
def test_direct_dependency_has_a_bound_and_a_tested_version_within_it(name):
    specifier = requirements("dev", "trackers", "real-inputs")[name]
    assert any(bound.operator == ">=" for bound in specifier), f"{name} has no lower bound"
    assert canonicalize_name(name) in pins(), f"{name} is not in constraints.txt"
    assert pins()[canonicalize_name(name)] in specifier


def test_pins_are_normal_names_and_public_versions():
    # A local part such as +cpu would shut out the same version built for another device.
    assert [name for name in pins() if name != canonicalize_name(name)] == []
    assert {name: str(version) for name, version in pins().items() if version.local} == {}
    assert list(pins()) == sorted(pins())


def test_pins_run_on_the_python_of_debian_12():
    """Its patch release is 3.11.2, and a pin that asks for a later one cannot be installed there."""
    distributions = {canonicalize_name(found.metadata["Name"]): found for found in metadata.distributions()}
    asked = {name: distributions[name].metadata["Requires-Python"] for name in pins() if name in distributions}
    assert len(asked) > 100
    assert [name for name, python in asked.items() if python and "3.11.2" not in SpecifierSet(python)] == []


def test_dependencies_beyond_the_core_say_why():
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    unexplained, explained = set(), False
    for line in lines[: lines.index("[tool.setuptools.packages.find]")]:
        entry = re.match(r'    "([A-Za-z0-9_.-]+?)[><=~!].*",$', line)
        if entry and not explained:
            unexplained.add(entry[1])
        # One comment may explain the entries that follow it without a gap.
        explained = line.startswith("    #") or (bool(entry) and explained)
    assert unexplained == CORE


def test_every_import_of_the_package_is_a_declared_dependency():
    imported = set()
    for path in (ROOT / "dflash_lab").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.partition(".")[0])
    imported -= {*sys.stdlib_module_names, "dflash_lab"}
    assert {canonicalize_name(IMPORT_NAMES.get(name, name)) for name in imported} <= set(
        requirements("trackers", "real-inputs")
    )


def test_python_bounds_agree_with_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [(low, high)] = re.findall(r"not \((\d+, \d+)\) <= sys\.version_info\[:2\] < \((\d+, \d+)\)", makefile)
    assert project()["requires-python"] == f">={low.replace(', ', '.')},<{high.replace(', ', '.')}"


def test_no_file_names_a_package_index():
    # Where packages come from is a setting of pip, conda or npm on the machine, not of the project.
    hosts = [
        b"pypi" + b".org",
        b"python" + b"hosted",
        b"download.pytorch" + b".org",
        b"conda." + b"anaconda",
        b"npm" + b"js.",
    ]
    # safe.directory: the checkout may belong to another user, as in a container.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name.decode() for name in listed.stdout.split(b"\0") if name]
    assert paths
    named = [str(path) for path in paths if path.is_file() and any(host in path.read_bytes() for host in hosts)]
    assert named == []
