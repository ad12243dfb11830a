"""Run the checks of the project. `nox` runs the same as CI; `nox -l` lists the other sessions.

Only `pip install nox uv` is needed. Each session has an environment of its own, with the versions
of constraints.txt (only `floor` leaves them aside).
"""

import fcntl
import os
import re
import shutil
from hashlib import sha256
from pathlib import Path

import nox

nox.needs_version = ">=2025.10.14"
nox.options.default_venv_backend = "uv"

# If it is set, each process of a test compiles all its imports anew: half of its time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

CONSTRAINTS = ("-c", "constraints.txt", "--build-constraints", "constraints.txt")
PROJECT = nox.project.load_toml("pyproject.toml")
GROUPS = PROJECT["dependency-groups"]

NEWEST = "3.13"  # the newest Python that all dependencies carry
# Each package with the siblings that its tests need.
PACKAGES: dict[str, list[str]] = PROJECT["tool"]["rollcage"]["packages"]
SUITES = PACKAGES["conformance"]
SESSIONS = PROJECT["tool"]["rollcage"]["sessions"]
nox.options.sessions = SESSIONS["default"]
SIBLINGS = {  # by the name of its distribution: its folder
    nox.project.load_toml(folder / "pyproject.toml")["project"]["name"]: str(folder)
    for above in ("packages", "integrations")
    for folder in Path(above).iterdir()
    if (folder / "pyproject.toml").is_file()
}
ADAPTERS = [name for name, (folder, *_) in PACKAGES.items() if folder.startswith("integrations/")]
MCP_LINES: dict[str, list[str]] = SESSIONS["mcp-lines"]
FASTMCP = "fastmcp==4.1.*"
POLICY = "packages/policy[idna,secrets,sql,yaml]"  # with every library that a policy can use
EVERYTHING = ["packages/core", POLICY, "packages/cli[demo]", "packages/conformance"]
EVERYTHING += ["packages/governance", "packages/otel[export]", "packages/pytest"]
EVERYTHING += ["packages/fork", "packages/toolbox"]
EVERYTHING += ["packages/importing[protobuf]", "packages/mcp[http,openapi]", "packages/views"]
EVERYTHING += ["packages/workflow[engine]", "packages/server", "packages/stores[postgres]"]
EVERYTHING += ["packages/adapter", *(PACKAGES[adapter][0] for adapter in ADAPTERS)]


def with_siblings(*folders: str) -> list[str]:
    """Return the folders, some with extras, and our packages that they depend on."""
    found, looked_at = [*folders], [*folders]
    for each in looked_at:  # it grows
        folder, _, extras = each.rstrip("]").partition("[")
        project = nox.project.load_toml(f"{folder}/pyproject.toml")["project"]
        needed = list(project.get("dependencies", []))
        for extra in filter(None, extras.split(",")):
            needed += project["optional-dependencies"][extra]
        for requirement in needed:
            name, wanted = re.findall(r"^([\w.-]+)(\[[^]]*\])?", requirement)[0]
            sibling = SIBLINGS.get(name)
            if sibling and not any(one.partition("[")[0] == sibling for one in found):
                found.append(sibling)
            if sibling and f"{sibling}{wanted}" not in looked_at:
                looked_at.append(f"{sibling}{wanted}")  # its extras may need more of our packages
    return found


def editable(session: nox.Session, *folders: str) -> list[str]:
    """Return the arguments that install the folders, and their dependencies here, in place.

    They name a file of requirements: uv builds a folder for each environment anew if it is named
    as an argument, but only once if it is named in a file.
    """
    lines = "".join(f"-e {Path(folder).resolve()}\n" for folder in with_siblings(*folders))
    file = session.cache_dir / "editable" / f"{sha256(lines.encode()).hexdigest()[:16]}.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(lines, encoding="utf-8")
    return ["-r", str(file)]


def groups(*names: str) -> list[str]:
    """Return the arguments that install the dependency groups that exist."""
    return [argument for name in names if name in GROUPS for argument in ("--group", name)]


# one worker a core, until all tests are done
PYTEST = ("pytest", "-n", "auto", "--dist", "worksteal")

# The adapters' own tests' dependencies: replay across frameworks uses their harnesses. And a
# PostgreSQL server, on which all commands are tried.
ADAPTERS_TESTS = groups("test", "test-cli", *(f"test-{adapter}" for adapter in ADAPTERS))

LAWS = [*PACKAGES["core"], *(f"packages/{name}" for name in ("cli", "fork", "views"))]
LAWS += ["packages/stores[postgres]"]
LAWS_TESTS = groups("test", "test-core", "test-stores")


def wheels(session: nox.Session, *folders: str) -> list[str]:
    """Return the wheels of the folders and siblings, built from sdists, so that both are complete.

    A wheel is built once for all sessions, even if they run at the same time.
    """
    found = []
    for each in with_siblings(*folders):
        folder, bracket, extras = each.partition("[")
        dist = session.cache_dir.resolve() / "wheels" / folder
        dist.mkdir(parents=True, exist_ok=True)
        built, made_of = dist / "built", digest_of(Path("constraints.txt"), Path(folder))
        with (dist / "made_of").open("a+") as stamp:
            fcntl.flock(stamp, fcntl.LOCK_EX)
            stamp.seek(0)
            if stamp.read() != made_of:
                build = ("uv", "build", "--quiet", "--clear", folder, "--out-dir", str(built))
                session.run_install(*build, *CONSTRAINTS[2:], external=True)
                stamp.truncate(0)
                stamp.write(made_of)
        found += [f"{path}{bracket}{extras}" for path in built.glob("*.whl")]
    return found


def install_programs(session: nox.Session, names: str, instead: str = "") -> None:
    """Install programs of the system, or name the command that installs them."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        session.error(f"a program is missing: apt-get install {names}{instead}")
    with (session.cache_dir / "apt-get").open("w") as alone:  # apt-get waits for no other one
        fcntl.flock(alone, fcntl.LOCK_EX)
        session.run("apt-get", "update", "-qq", external=True)
        session.run("apt-get", "install", "--yes", "-qq", *names.split(), external=True)


def environment(session: nox.Session, folder: Path, *packages: str) -> str:
    """Make a further environment with the packages; returns its Python."""
    python = str(folder / "bin" / "python")
    session.run("uv", "venv", "--quiet", "--clear", str(folder), external=True)
    install = ("uv", "pip", "install", "--quiet", "--python", python)
    session.run(*install, *packages, external=True)
    return python


def digest_of(*paths: Path) -> str:
    """Return the digest of the files, and of the contents of the folders."""
    files = sorted(each for path in paths for each in (path, *path.rglob("*")) if each.is_file())
    digest = sha256()
    for file in files:
        if "__pycache__" not in file.parts:
            digest.update(f"{file} {sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def moving(adapter: str) -> list[str]:
    """Return the tests that a new version of the framework or of Python may break."""
    return [f"{PACKAGES[adapter][0]}/tests/test_{what}.py" for what in ("conformance", "facts")]


@nox.session
def demo(session: nox.Session) -> None:
    """See Rollcage work: an agent crashes, is resumed, is blocked, is caught out, and is undone."""
    folders = [
        "packages/core",
        "packages/cli[demo]",
        "packages/views",
        "packages/toolbox",
        "integrations/langchain",
    ]
    session.install(*editable(session, *folders), *CONSTRAINTS)
    session.run("rollcage", "demo", *session.posargs)
    session.log(f'To have `rollcage` in this shell: export PATH="{session.bin}:$PATH"')


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and the changelog's fragments."""
    session.install(*groups("lint"), *CONSTRAINTS)
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("towncrier", "build", "--draft", "--version", "next", silent=True)


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check types of what is installed, and of what users' code is like, with strict mypy.

    The session `types` looks at everything, with pyright too.
    """
    session.install(*editable(session, *EVERYTHING), *groups(*GROUPS), *CONSTRAINTS)
    sources = [f"{folder}/src" for folder in SIBLINGS.values() if Path(folder, "src").is_dir()]
    session.run("mypy", *sources, "tests/typing", "examples")


@nox.session
def types(session: nox.Session) -> None:
    """Check all types, those of tests too, with strict mypy and with pyright."""
    session.install(*editable(session, *EVERYTHING), *groups(*GROUPS), *CONSTRAINTS)
    session.run("mypy")
    session.run("pyright")


@nox.session
@nox.parametrize("package", list(PACKAGES), ids=list(PACKAGES))
def tests(session: nox.Session, package: str) -> None:
    """Run one package's tests on its built wheel, beside its own dependencies only.

    With ROLLCAGE_COVERAGE=1 they are measured, for `coverage`: they take twice as long then.
    """
    needs = groups("test", f"test-{package}")
    session.install(*wheels(session, *PACKAGES[package]), *needs, *CONSTRAINTS)
    folder = PACKAGES[package][0]
    [source] = [each.parent.name for each in Path(folder, "src").glob("*/__init__.py")]
    measured = ("coverage", "run", f"--source={source}", "-m")
    command = (*measured, *PYTEST) if "ROLLCAGE_COVERAGE" in os.environ else PYTEST
    session.run(*command, f"{folder}/tests", *session.posargs)


@nox.session
@nox.parametrize("part", ["laws", "others"], ids=["laws", "others"])
def cross(session: nox.Session, part: str) -> None:
    """Test across packages: laws; layering, exports, packaging, examples, the docs' code blocks."""
    if part == "laws":
        session.install(*editable(session, *LAWS), *LAWS_TESTS, *CONSTRAINTS)
        tests = ["tests/laws"]
    else:
        session.install(*editable(session, *EVERYTHING), *ADAPTERS_TESTS, *CONSTRAINTS)
        tests = ["tests", "--ignore", "tests/laws", "--ignore", "tests/test_benchmarks.py"]
    session.run(*PYTEST, *tests, *session.posargs)


@nox.session
def peers(session: nox.Session) -> None:
    """Run the benchmark, small and beside every peer, and check that it prints all it promises."""
    session.install(*editable(session, *EVERYTHING), *groups("test", "bench"), *CONSTRAINTS)
    session.run(*PYTEST, "tests/test_benchmarks.py", *session.posargs)


@nox.session
def examples(session: nox.Session) -> None:
    """Run all examples alone (most are a part of `cross`)."""
    session.install(*editable(session, *EVERYTHING), *groups("test", "examples"), *CONSTRAINTS)
    session.run(*PYTEST, "-m", "", "tests/test_examples.py", *session.posargs)


@nox.session
def matrix(session: nox.Session) -> None:
    """Record in each framework, replay in each, as a table (a part of `cross`)."""
    session.install(*editable(session, *EVERYTHING), *ADAPTERS_TESTS, *CONSTRAINTS)
    session.run("python", "tests/matrix.py", *(session.posargs or ["reference", *ADAPTERS]))


@nox.session
def undo(session: nox.Session) -> None:
    """Undo a LangChain agent's effects without any framework (in `cross`, by a blocker)."""
    needed = ("packages/core", "packages/cli", "packages/views", "packages/toolbox")
    session.install(*editable(session, *needed), *CONSTRAINTS)
    there = Path(session.create_tmp()).resolve() / "langchain"
    with_langchain = editable(session, *needed, "integrations/langchain")
    python = environment(session, there, *with_langchain, *CONSTRAINTS)
    script, folder = "tests/undo_elsewhere.py", there / "agent"
    session.run(python, script, "record", str(folder), external=True)
    session.run("python", script, "undo", str(folder))


@nox.session
def escapes(session: nox.Session) -> None:
    """Try hostile paths and addresses, and their benign twins, as tables (a part of `tests`)."""
    session.install(
        *editable(session, *PACKAGES["toolbox"]), *groups("test", "test-toolbox"), *CONSTRAINTS
    )
    for corpus in ("escapes.py", "hostile_urls.py"):
        session.run("python", f"packages/toolbox/tests/{corpus}", *session.posargs)


@nox.session
def phoenix(session: nox.Session) -> None:
    """Check what a real Phoenix shows of runs; it takes up to three minutes to start: not in CI."""
    session.install(*editable(session, "packages/core", "packages/otel[export]"), *CONSTRAINTS)
    there = Path(session.create_tmp()).resolve() / "phoenix"
    environment(session, there, "arize-phoenix>=20")
    session.run("python", "-m", "tests.phoenix", str(there / "bin" / "phoenix"))


@nox.session
def mcp(session: nox.Session) -> None:
    """Put the proxy between real MCP servers and clients, each line in its own environment."""
    if shutil.which("npm") is None:
        install_programs(session, "nodejs npm")
    needed = [*PACKAGES["mcp"][1:], "packages/mcp[http]"]
    session.install(*editable(session, *needed), *groups("test"), *CONSTRAINTS)
    there = Path(session.create_tmp()).resolve() / "servers"
    for line, packages in MCP_LINES.items():
        environment(session, there / line, *packages)
    npm = ("npm", "install", "--silent", "--prefix", str(there / "npm"))
    session.run(*npm, *SESSIONS["mcp-node"], external=True)
    session.run(*PYTEST, "tests/servers", *session.posargs, env={"ROLLCAGE_MCP_LAB": str(there)})


@nox.session
def browser(session: nox.Session) -> None:
    """Run Mission Control in a headless Chromium; pictures of its pages go to site/screenshots."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if chromium is None and "ROLLCAGE_CHROMIUM" not in os.environ:
        install_programs(session, "chromium", ", or set ROLLCAGE_CHROMIUM to the path of one")
    folders = ["packages/core", POLICY, "packages/cli", "packages/governance", "packages/server"]
    folders += ["packages/views", "packages/workflow"]
    session.install(*editable(session, *folders), *groups("test", "browser"), *CONSTRAINTS)
    session.run(*PYTEST, "tests/browser", *session.posargs)


@nox.session
def hostile(session: nox.Session) -> None:
    """Send hostile calls, and benign twins, through the gate, as a table (a part of `cross`)."""
    session.install(*editable(session, "packages/core", POLICY), *groups("test"), *CONSTRAINTS)
    session.run("python", "-m", "tests.hostile", *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """Make runs fail, kill them or interfere with them (a few in `checks`).

    One of them: `-- rollback`, `-- crash`, `-- conflicts`.
    """
    folders = ["packages/core", "packages/toolbox"]
    session.install(*editable(session, *folders), *groups("test"), *CONSTRAINTS)
    every = [["rollback"], ["crash"], ["conflicts"]]
    for each in [session.posargs] if session.posargs else every:
        session.run("python", "-m", "tests.chaos", *each)


@nox.session
@nox.parametrize("adapter", ADAPTERS, ids=ADAPTERS)
def conformance(session: nox.Session, adapter: str) -> None:
    """Run an adapter's conformance suite alone (a part of `tests`)."""
    needs = groups("test", f"test-{adapter}")
    session.install(*editable(session, *PACKAGES[adapter]), *needs, *CONSTRAINTS)
    session.run(*PYTEST, f"{PACKAGES[adapter][0]}/tests/test_conformance.py", *session.posargs)


@nox.session
@nox.parametrize("store", ["sqlite", "postgres"], ids=["sqlite", "postgres"])
def stores(session: nox.Session, store: str) -> None:
    """Run the tests and suites that any store must pass, on it instead of a folder."""
    folders = [*PACKAGES["core"], "packages/conformance", "packages/stores[postgres]"]
    session.install(*editable(session, *folders), *groups("test", "test-core"), *CONSTRAINTS)
    tests = [f"packages/core/tests/{name}.py" for name in SESSIONS["on-any-store"]]
    tests.append("packages/policy/tests/test_labels_flow.py")
    tests.append("packages/conformance/tests/test_reference.py")
    session.run(*PYTEST, *tests, *session.posargs, env={"ROLLCAGE_TEST_STORE": store})


@nox.session
def faults(session: nox.Session) -> None:
    """Kill workers, break networks and kill each party of MCP, more often than in CI.

    ROLLCAGE_FAULTS=1000 kills more than 1,000 processes on each kind of store.
    """
    on_stores = groups("test", "test-core")
    with_servers = groups("test-mcp", *(f"test-{each}" for each in ADAPTERS))
    session.install(*editable(session, *EVERYTHING), *on_stores, *with_servers, *CONSTRAINTS)
    tests = ["tests/laws/test_kills.py", "packages/stores/tests/test_postgres_faults.py"]
    tests.append("packages/mcp/tests/test_kills.py")
    tests += [f"{PACKAGES[each][0]}/tests/test_mcp_kills.py" for each in ("autogen", "crewai")]
    often = {"ROLLCAGE_FAULTS": os.environ.get("ROLLCAGE_FAULTS", "200")}
    session.run("pytest", "-m", "", *tests, *session.posargs, env=often)


@nox.session
def workers(session: nox.Session) -> None:
    """Kill workers of workflows at any moment, on each store (a few are in `tests`).

    In a row: `-- --seeds 3 --workflows 50 --kills 12`; one store: `-- --only sqlite`.
    """
    folders = [*PACKAGES["workflow"][1:], "packages/workflow[engine]"]
    session.install(*editable(session, *folders), *groups("test-workflow"), *CONSTRAINTS)
    lab = {"PYTHONPATH": "packages/workflow/tests/lab:packages/core/tests/lab"}
    session.run("python", "-m", "fleet", *session.posargs, env=lab)


@nox.session
def simulate(session: nox.Session) -> None:
    """Simulate thousands of universes of workers on failing disks and networks (a few in `cross`).

    Each failing seed is printed with the options that replay it: `-- --place disk --seed 4711`.
    """
    session.install(*editable(session, "packages/core"), *groups("test"), *CONSTRAINTS)
    session.run("python", "-m", "tests.simulation", *session.posargs)


@nox.session
def laws(session: nox.Session) -> None:
    """Try every law on many more cases than in `tests`, new cases each time."""
    session.install(*editable(session, *LAWS), *LAWS_TESTS, *CONSTRAINTS)
    many = {"HYPOTHESIS_PROFILE": "laws"}
    tests = ("packages/core/tests", "tests/laws")
    session.run(*PYTEST, "-m", "law", *tests, *session.posargs, env=many)


@nox.session
def checks(session: nox.Session) -> None:
    """Check that laws, suites and simulation find mistakes; core without a stage; more cases."""
    needs = (*ADAPTERS_TESTS, *groups("test-core", "test-stores", "test-workflow"))
    session.install(*editable(session, *EVERYTHING), *needs, *CONSTRAINTS)
    folders = [PACKAGES[name][0] for name in ("core", "conformance", "stores", "workflow")]
    folders += [PACKAGES[name][0] for name in ADAPTERS]
    for tests in ("tests", *(f"{folder}/tests" for folder in folders)):
        session.run(*PYTEST, "-m", "nightly", tests, *session.posargs)


@nox.session
def exhaustive(session: nox.Session) -> None:
    """Try every run up to a bound, ROLLCAGE_EXHAUSTIVE: a larger one than in `tests`."""
    session.install(
        *editable(session, *PACKAGES["core"]), *groups("test", "test-core"), *CONSTRAINTS
    )
    bound = {"ROLLCAGE_EXHAUSTIVE": os.environ.get("ROLLCAGE_EXHAUSTIVE", "5")}
    session.run(*PYTEST, "tests/laws/test_exhaustive.py", *session.posargs, env=bound)


@nox.session
def mutate(session: nox.Session) -> None:
    """Change core in one place at a time: fails if tests notice fewer than 90 % (not in CI).

    The same sample again: `-- --seed 7`; one file: `-- --only trace/run.py`.
    """
    folders = [*PACKAGES["core"], *PACKAGES["fork"]]
    session.install(*editable(session, *folders), *groups("test", "test-core"), *CONSTRAINTS)
    session.run("python", "-m", "tests.mutation", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Fail below the bound of coverage, each package by its own tests: ROLLCAGE_COVERAGE=1."""
    session.install(*groups("test"), *CONSTRAINTS)
    session.run("coverage", "combine")
    session.run("coverage", "report")


@nox.session
@nox.parametrize("adapter", ADAPTERS, ids=ADAPTERS)
def floor(session: nox.Session, adapter: str) -> None:
    """Run an adapter's conformance and facts on the lowest versions that it and core declare."""
    needs = groups("test", f"test-{adapter}")  # together: alone, they would raise the low versions
    session.install(*editable(session, *PACKAGES[adapter]), *needs, "--resolution", "lowest-direct")
    session.run(*PYTEST, *moving(adapter), *session.posargs)


@nox.session(python=NEWEST, download_python="never")
def newest(session: nox.Session) -> None:
    """Run core's quick tests, then an adapter's conformance and facts, on the newest Python."""
    adapter = "langchain"  # the framework whose libraries move first
    folders = [PACKAGES[adapter][0], *SUITES, "packages/core", POLICY]
    needs = groups("test", "test-core", f"test-{adapter}")
    session.install(*editable(session, *folders), *needs, *CONSTRAINTS)
    # Thousands of cases are tried on the oldest Python.
    quick = "not (slow or law or hypothesis or nightly)"
    # One after the other: core's tests fork, which takes longer with a framework in memory.
    session.run(*PYTEST, "-m", quick, "packages/core/tests", *session.posargs)
    session.run(*PYTEST, *moving(adapter), *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site, into site/; a broken link, anchor or reference fails."""
    session.install(*SESSIONS["site"])
    session.run("zensical", "build", "--strict", "--clean")
    session.run("python", "-m", "website")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure each peer beside us in one run; `nox -s bench -- --quick` is a smoke test."""
    session.install(*editable(session, *EVERYTHING), *groups("bench"), *CONSTRAINTS)
    variables = {}
    if "--mcp" in session.posargs:  # FastMCP needs the newer line of MCP's library
        there = Path(session.create_tmp()).resolve() / "fastmcp"
        variables["ROLLCAGE_BENCH_FASTMCP"] = environment(session, there, FASTMCP)
    session.run("python", "-m", "benchmarks", *session.posargs, env=variables)
    alone = {"--stores", "--workflow", "--workers", "--mcp", "--server"}
    if alone & set(session.posargs):
        return
    quick = [each for each in session.posargs if each == "--quick"]
    session.run("python", "-m", "benchmarks.flow")
    session.run("python", "-m", "benchmarks.spans", *quick)
    session.run("python", "-m", "benchmarks", "--server", *quick)


@nox.session
def count(session: nox.Session) -> None:
    """Count each path's instructions, system calls, bytes and functions; name changes over 3 %."""
    missing = [each for each in ("valgrind", "strace") if shutil.which(each) is None]
    if missing:
        install_programs(session, " ".join(missing))
    session.install(*editable(session, *PACKAGES["policy"]), *CONSTRAINTS)
    session.run("python", "-m", "benchmarks.counting", *session.posargs)


@nox.session
def growth(session: nox.Session) -> None:
    """Measure how costs grow, from 1 to 100: slopes in instructions, long conversations in CPU."""
    if shutil.which("valgrind") is None:
        install_programs(session, "valgrind")
    session.install(*editable(session, *EVERYTHING), *groups("bench"), *CONSTRAINTS)
    session.run("python", "-m", "benchmarks.growth", *session.posargs)
    session.run("python", "-m", "benchmarks.conversations")


@nox.session(venv_backend="none")
def lock(session: nox.Session) -> None:
    """Take the newest versions into constraints.txt."""
    session.run("uv", "lock", "--upgrade", "--quiet", external=True)
    what = ("--all-packages", "--all-groups", "--all-extras", "--no-emit-workspace")
    how = ("--no-hashes", "--no-header", "--no-annotate", "--quiet")
    exported = session.run("uv", "export", *what, *how, external=True, silent=True)
    # Versions only: no index and no address, so that it holds wherever it is read.
    pins = [line for line in str(exported).splitlines() if re.match(r"[\w.-]+==[^/@]+$", line)]
    Path("constraints.txt").write_text("\n".join(pins) + "\n", encoding="utf-8")
