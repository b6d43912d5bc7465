"""Tests of the import rules: which packages may import which, and which modules may do I/O."""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.source import Module, modules

ACTING = {
    "asyncio",
    "os",
    "time",
    "nats",
    "kubernetes",
    "tensorflow",
    "keras",
    "logging",
    "structlog",
}
ACTING |= {
    "subprocess",
    "socket",
    "signal",
    "threading",
    "random",
    "uuid",
    "psutil",
    "aiohttp",
    "gc",
}

EDGES = {
    "services.monitor": {
        "__main__",
        "service",
    },
    "services.allocator": {
        "__main__",
        "admission.pod_policy_file",
        "admission.removal",
        "custom_policies",
        "service",
        "snapshot",
    },
    "services.launcher": {
        "__main__",
        "events",
        "kube",
        "service",
    },
    "services.trainer": {
        "__main__",
        "credential_isolation",
        "doctor.examine",
        "pod.children",
        "pod.executor",
        "pod.fence",
        "pod.publisher",
        "pod.service",
        "pod.usage",
        "worker.checkpoint",
        "worker.checkpoint_files",
        "worker.chief",
        "worker.child",
        "worker.fork_server",
        "worker.example_source",
        "worker.file_source",
        "worker.gradient_noise",
        "worker.input_pipeline",
        "worker.exact_batches",
        "worker.file_batches",
        "worker.global_batch",
        "worker.trace_lanes",
        "worker.whole_updates",
        "worker.lanes",
        "worker.portions",
        "worker.rehearsal",
        "worker.stall_detector",
        "worker.optimizers",
        "worker.evaluation",
        "worker.own_step",
        "worker.exactness",
        "worker.packing",
        "worker.part_exchange",
        "worker.part_step",
        "worker.program_data",
        "worker.remote_worker",
        "worker.row_updates",
        "worker.saving",
        "worker.sharded_table",
        "worker.table_base",
        "worker.stored_checkpoints",
        "worker.table_checkpoint",
        "worker.table_division",
        "worker.table_transfer",
        "worker.tensorboard_events",
        "worker.staleness",
        "worker.step_loss",
        "worker.step_resources",
        "worker.training_step",
        "worker.watchdog",
        "worker.write_pace",
    },
}
"""Modules that touch the outside world, by package, with relative names.

All other modules of these packages are pure.
"""

PURE_ELSEWHERE = (
    "services.console.board",
    "services.console.log_entry",
    "services.console.report",
    "services.console.text",
    "services.console.top",
    "services.console.why",
    "services.local.objects",
    "services.local.scheduler",
    "services.whatif",
    "services.cli.asyncapi_document",
    "shared.bounds",
    "shared.checkpoints",
    "shared.documents",
    "shared.messages",
    "shared.text",
    "shared.version",
    "shared.auth.authority",
    "shared.auth.permissions",
    "shared.bus.subjects",
    "shared.kube.objects",
    "shared.runtime.config",
    "shared.runtime.metrics",
)
"""Modules and packages outside these services that are pure too."""

LIBRARIES = {
    "aiohttp",
    "click",
    "hypothesis",
    "keras",
    "kubernetes",
    "matplotlib",
    "msgspec",
    "nats",
    "numpy",
    "pathspec",
    "psutil",
}
LIBRARIES |= {"nkeys", "prometheus_client", "sortedcontainers"}
LIBRARIES |= {
    "pytest",
    "rich",
    "scipy",
    "sklearn",
    "structlog",
    "tensorflow",
    "yaml",
    "services",
    "shared",
    "tests",
}


def is_pure(name: str) -> bool:
    if any(name == pure or name.startswith(f"{pure}.") for pure in PURE_ELSEWHERE):
        return True
    service = ".".join(name.split(".")[:2])
    return service in EDGES and name.removeprefix(f"{service}.") not in {service, *EDGES[service]}


ALL = modules()
PURE = [module for module in ALL if is_pure(module.name)]
NAMES = {module.name for module in ALL}


def first_party(module: Module) -> set[str]:
    return {name for name in module.imports if name in NAMES}


def test_shared_imports_no_service() -> None:
    assert {m.name: m.imports for m in modules("shared") if "services" in m.libraries} == {}


def test_the_control_plane_imports_no_tensorflow() -> None:
    knowing = {m.name for m in ALL if m.libraries & {"tensorflow", "keras"}}

    assert {name for name in knowing if not name.startswith("services.trainer.")} == set()


def test_the_supervisor_of_a_pod_imports_no_tensorflow() -> None:
    """The supervisor does not import it through other modules either; its child processes do."""
    by_name = {m.name: m for m in ALL}
    above = "services.trainer"
    inside = {f"{above}.worker", f"{above}.doctor"}
    start = [
        name
        for name in NAMES
        if (name == above or name.startswith(f"{above}."))
        and ".".join(name.split(".")[:3]) not in inside
    ]
    needed, unread = set[str](), set(start)
    while unread:
        name = unread.pop()
        needed.add(name)
        unread |= (by_name[name].imports & NAMES) - needed

    assert f"{above}.pod.service" in start
    assert {n for n in needed if by_name[n].libraries & {"tensorflow", "keras"}} == set()
    assert {n for n in needed if ".".join(n.split(".")[:3]) in inside} == set()


def test_no_service_imports_the_internals_of_another() -> None:
    """Services communicate over the bus. The commands of `weir` may import every service."""
    services = [name.removeprefix("services.") for name in EDGES]
    crossing = {
        f"{module} -> {name}"
        for module in ALL
        for name in first_party(module)
        if module.name.split(".")[1] in services and name.startswith("services.")
        if name.split(".")[1:2] not in ([], [module.name.split(".")[1]])
    }

    assert crossing == set()


def test_the_one_machine_cluster_imports_no_services_modules() -> None:
    found = {
        f"{module} -> {name}"
        for module in modules("services/local")
        for name in first_party(module)
        if name.startswith("services.") and name.split(".")[1] != "local"
    }

    assert found == set()


@pytest.mark.parametrize("module", PURE, ids=str)
def test_a_pure_module_imports_no_io_libraries(module: Module) -> None:
    assert module.libraries & ACTING == set()


@pytest.mark.parametrize("module", PURE, ids=str)
def test_a_pure_module_imports_only_pure_modules(module: Module) -> None:
    packages = {".".join(name.split(".")[:depth]) for name in NAMES for depth in (1, 2)}

    assert {n for n in first_party(module) if not is_pure(n) and n not in packages} == set()


def package_of(name: str, depth: int) -> str:
    """Return the package that stands for a module: `shared` as a whole, others cut at `depth`."""
    parts = name.split(".")
    return "shared" if parts[0] == "shared" else ".".join(parts[:depth])


def import_cycle(depth: int, inside: str = "") -> list[str]:
    """Return the packages of a cycle in the order of their imports; empty if there is none."""
    graph: dict[str, set[str]] = {}
    for module in ALL:
        package = package_of(module.name, depth)
        imported = {package_of(name, depth) for name in first_party(module)}
        if package.startswith(inside):
            needed = {name for name in imported - {package} if name.startswith(inside)}
            graph.setdefault(package, set()).update(needed)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        return list(reversed(cycle.args[1]))
    return []


def test_no_package_imports_itself_through_other_packages() -> None:
    assert " imports ".join(import_cycle(depth=2)) == ""


@pytest.mark.parametrize("service", ["cli", "console", "launcher", "local", "trainer", "whatif"])
def test_no_part_of_a_service_imports_itself_through_other_parts(service: str) -> None:
    """The allocator is left out: its state, steps, policies and models use each other's types."""
    assert " imports ".join(import_cycle(depth=3, inside=f"services.{service}.")) == ""


def test_console_imports_no_command() -> None:
    found = {
        f"{module} -> {name}"
        for module in modules("services/console")
        for name in first_party(module)
        if name.startswith("services.cli")
    }

    assert found == set()


@pytest.mark.parametrize("service", EDGES)
def test_every_edge_that_is_declared_exists(service: str) -> None:
    """A deleted module must also leave the list."""
    assert {name for name in EDGES[service] if f"{service}.{name}" not in NAMES} == set()


def test_the_contract_of_policies_imports_nothing_of_the_allocator() -> None:
    (contract,) = (m for m in ALL if m.name == "services.allocator.policies.contract")

    assert {name for name in contract.imports if name.startswith("services")} == set()


def test_no_module_of_the_allocator_imports_for_type_checkers_alone() -> None:
    """Such an import hides that two modules need each other."""
    assert {
        m.name
        for m in ALL
        if m.name.startswith("services.allocator") and "typing.TYPE_CHECKING" in m.imports
    } == set()


def test_the_allocator_uses_no_caches() -> None:
    caches = {f"functools.{name}" for name in ("cache", "cached_property", "lru_cache")} | {
        "weakref"
    }
    found = [m.name for m in ALL if m.name.startswith("services.allocator") and caches & m.imports]
    assert not found, "what passes need again belongs in the tables of the state"


def test_the_policy_static_needs_at_most_9_files() -> None:
    by_name = {m.name: m for m in ALL}
    needed, unread = set[str](), {"services.allocator.policies.config_manager"}
    while unread:
        name = unread.pop()
        needed.add(name)
        unread |= (by_name[name].imports & NAMES) - needed

    assert len(needed) <= 9, sorted(needed)


def test_only_the_trainer_runs_user_code() -> None:
    """Outside the trainer a program is text: no other module can run it.

    The listed modules import modules by name: `weir` its own commands, the trainer's child process
    modules of TensorFlow, and the allocator the policies that its settings name.
    """
    running = {m.name for m in ALL if m.runs_text} - {
        "services.trainer.program",
        "services.trainer.worker.child",
    }

    assert running == {"services.__main__", "services.allocator.custom_policies"}


def test_no_service_process_imports_the_module_that_runs_user_code() -> None:
    loading = "services.trainer.program.load"

    assert {m.name for m in ALL if loading in m.mentions} == {"services.trainer.worker.child"}
    assert [m.name for m in ALL if "services.trainer.doctor.examine" in m.imports] == [], (
        "a process of its own"
    )
    assert {m.name for m in ALL if "services.trainer.worker.child" in m.imports} == {
        "services.trainer.worker.fork_server",
        "services.trainer.doctor.examine",
    }


def test_no_module_has_the_name_of_a_library() -> None:
    taken = LIBRARIES | set(sys.stdlib_module_names)

    assert {
        m.name
        for m in ALL
        if m.name not in ("services", "shared") and m.path.stem in taken - {"__main__"}
    } == set()


def test_example_programs_do_not_import_weir() -> None:
    assert {m.name for m in modules("deploy/jobs") if m.libraries & {"services", "shared"}} == set()
