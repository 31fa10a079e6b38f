"""Every package has the parts that the conventions list, and the root knows every member."""

import ast
import re
from pathlib import Path

from packaging.requirements import Requirement

from workbench import Member, Workspace
from workbench.bench.definitions import read_bench
from workbench.bench.peers import read_peers


def test_the_root_names_every_member_it_globs(workspace: Workspace):
    names = {member.name for member in workspace.members}
    dependencies = {Requirement(text).name for text in workspace.pyproject["project"]["dependencies"]}
    sources = workspace.pyproject["tool"]["uv"]["sources"]
    assert dependencies == names
    assert {name for name, source in sources.items() if source == {"workspace": True}} == names


def test_extras_named_by_the_root_exist(workspace: Workspace):
    for text in workspace.pyproject["project"]["dependencies"]:
        requirement = Requirement(text)
        member = workspace.member(requirement.name)
        extras = member.pyproject["project"].get("optional-dependencies", {})
        assert requirement.extras <= set(extras), f"{text}: extras are {', '.join(extras)}"


def test_a_member_has_its_parts(member: Member):
    parts = ["README.md", "src/{module}/__init__.py", "src/{module}/py.typed", "tests"]
    if member.is_package:
        parts += ["CHANGELOG.md", "LICENSE", "src/{module}/cli.py", "tests/golden/README.md"]
    missing = [part for part in parts if not (member.folder / part.format(module=member.module)).exists()]
    assert not missing
    assert member.folder.name == member.name


def test_a_member_declares_its_parts(member: Member):
    project = member.pyproject["project"]
    assert project["requires-python"].startswith(">=3.11")
    assert "<" not in project["requires-python"]
    assert project["license"] == "MIT"
    assert member.scripts, "no console command"
    dev = {Requirement(text).name for text in member.pyproject["dependency-groups"]["dev"]}
    assert "pytest" in dev
    if member.is_package:
        assert "workbench" in dev
        assert member.pyproject["tool"]["uv"]["sources"]["workbench"] == {"workspace": True}
        assert member.name in project["entry-points"]["workbench.demos"]


def test_a_dependency_has_a_lower_bound_and_no_cap(member: Member):
    project = member.pyproject["project"]
    texts = [*project["dependencies"]]
    for extra in project.get("optional-dependencies", {}).values():
        texts += extra
    for requirement in map(Requirement, texts):
        operators = {specifier.operator for specifier in requirement.specifier}
        assert ">=" in operators or requirement.name == member.name, f"{requirement} has no lower bound"
        if operators & {"<", "<=", "==", "~="}:
            line = next(
                line
                for line in (member.folder / "pyproject.toml").read_text().splitlines()
                if str(requirement.name) in line
            )
            assert "#" in line, f"{requirement} is capped without a reason in a comment"


def test_the_public_api_is_explicit(member: Member):
    tree = ast.parse((member.source / "__init__.py").read_text(encoding="utf-8"))
    names = [
        element.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id == "__all__" and node.value
        for element in ast.walk(node.value)
        if isinstance(element, ast.Constant) and isinstance(element.value, str)
    ]
    assert names, "src/<module>/__init__.py needs an explicit __all__"
    assert len(set(names)) == len(names)


def test_no_file_is_called_utils(files: list[Path]):
    assert not [file for file in files if file.name in ("utils.py", "helpers.py", "common.py")]


def test_the_readme_lists_every_package(package: Member, workspace: Workspace):
    readme = (workspace.root / "README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("|")]
    link = f"[{package.name}](packages/{package.name})"
    assert any(link in row and "planned" not in row for row in rows), f"no row has {link}"


def test_benchmarks_are_well_formed(package: Member, workspace: Workspace):
    folder = workspace.root / "benchmarks" / package.module
    assert folder.is_dir()
    sets = read_peers(folder / "peers.txt")
    for file in sorted(folder.glob("bench_*.py")):
        for case in read_bench(file).cases:
            for peer in case.peers:
                assert peer.environment in sets, f"{file.name}: [{peer.environment}] not in peers.txt"


def test_ci_installs_the_system_packages_that_the_readme_names(workspace: Workspace):
    line = re.compile(r"apt-get install (?:-\S+ )*([a-z0-9 +.-]+)")
    readme = line.search((workspace.root / "README.md").read_text(encoding="utf-8"))
    script = re.search(r'system_packages="([^"]+)"', (workspace.root / ".ci" / "run").read_text())
    assert readme is not None
    assert script is not None
    assert set(readme[1].split()) == set(script[1].split())


def test_actions_are_pinned_by_major_version(files: list[Path]):
    uses = [
        line.split("uses:")[1].strip()
        for file in files
        if file.parent.name == "workflows"
        for line in file.read_text().splitlines()
        if "uses:" in line
    ]
    assert uses
    assert [action for action in uses if not re.search(r"@(release/)?v\d+$", action)] == []
