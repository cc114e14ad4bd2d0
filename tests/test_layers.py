"""The allowed imports between packages."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from sruserve.model.cells import FAMILIES

PACKAGE = Path(__file__).parent.parent / "sruserve"
LAYERS = ("kernels", "model", "export", "server")
FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def imported(path: Path) -> set[str]:
    """All imports of a file, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{path} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def own(path: Path) -> set[str]:
    """A file's imports from this package."""
    return {name for name in imported(path) if name.startswith("sruserve.")}


def test_imports_point_from_server_to_export_to_model_to_kernels() -> None:
    for path in FILES:
        layer = path.relative_to(PACKAGE).parts[0]
        if layer not in LAYERS:
            continue
        allowed = LAYERS[: LAYERS.index(layer) + 1]
        for name in own(path):
            assert name.split(".")[1] in (*allowed, "__version__"), f"{path} imports {name}"


TRACING = sorted((PACKAGE / "tracing").rglob("*.py"))


def test_tracing_knows_models_alone_and_only_the_package_itself_knows_tracing() -> None:
    for path in FILES:
        for name in own(path):
            if path in TRACING:
                assert name.split(".")[1] in ("kernels", "model", "tracing"), (
                    f"{path} imports {name}"
                )
            else:
                known = path == PACKAGE / "__init__.py"
                assert known or name.split(".")[1] != "tracing", f"{path} imports {name}"


# The examination of servers: each part imports from those above it, and none from its own line.
CHECK_PARTS = (
    ("errors",),
    ("address", "results", "samples", "together"),
    ("connections", "findings"),
    ("transport",),
    ("server",),
    ("protocols", "checks"),
    ("examine",),
    ("session",),
    ("report",),
)
CHECK = sorted((PACKAGE / "check").rglob("*.py"))


def lines_of(parts: tuple[tuple[str, ...], ...]) -> dict[str, int]:
    """The line of each part."""
    return {part: line for line, names in enumerate(parts) for part in names}


def part_of(path: Path, folder: Path) -> str:
    """The file or folder directly below a folder that a path is, or is in."""
    return path.relative_to(folder).parts[0].removesuffix(".py")


def test_the_examination_of_servers_imports_in_one_direction_and_knows_no_server() -> None:
    lines = lines_of(CHECK_PARTS)
    for path in CHECK:
        part = part_of(path, PACKAGE / "check")
        for name in imported(path):
            top, *rest = name.split(".")
            if top != "sruserve":
                assert top in {"rich", *sys.stdlib_module_names}, f"{path} imports {name}"
            elif name != "sruserve.model.errors.printable":
                assert rest[0] == "check", f"{path} imports {name}"
                assert part == rest[1] or lines[rest[1]] < lines[part], f"{path} imports {name}"


def test_only_its_command_knows_the_examination_of_servers() -> None:
    for path in FILES:
        if path not in CHECK and path != PACKAGE / "cli_check.py":
            assert not any(name.split(".")[1] == "check" for name in own(path)), path


def test_compression_knows_models_and_no_server() -> None:
    for path in sorted((PACKAGE / "compression").rglob("*.py")):
        for name in own(path):
            allowed = ("kernels", "model", "compression", "__version__")
            assert name.split(".")[1] in allowed, f"{path} imports {name}"


# The rooms of the server: each imports from those above it, and none from its own line.
ROOMS = (
    ("errors", "unheard"),
    (
        "budget",
        "clocks",
        "collector",
        "ending",
        "fair_semaphore",
        "field_bounds",
        "file_limits",
        "freed_memory",
        "json_limits",
        "json_output",
        "kernel_buffers",
        "key_entries",
        "key_ring",
        "offload",
        "origin_list",
        "process_limits",
        "redis_pool",
        "seeds",
        "tuning",
    ),
    ("auth", "tls"),
    ("settings",),
    ("logs", "setting_table"),
    ("engine", "supervision"),
    ("metrics", "observation"),
    ("state", "supervisor"),
    ("repository",),
    ("lifecycle", "pulse"),
    ("tasks",),
    ("streams",),
    ("http",),
    ("kserve", "websocket"),
    ("app",),
    ("run", "ray_serve"),
)
# What the API for Python is made of: the rooms without a protocol.
BELOW_THE_API = {room for line in ROOMS[: ROOMS.index(("http",))] for room in line}
API = sorted((PACKAGE / "api").rglob("*.py"))


def test_the_api_knows_tasks_and_models_but_no_protocol() -> None:
    for path in API:
        for name in own(path):
            _, layer, *rest = name.split(".")
            assert layer in ("api", "model", "server"), f"{path} imports {name}"
            assert layer != "server" or rest[0] in BELOW_THE_API, f"{path} imports {name}"
        assert not re.search(r"\bhttp", path.read_text(), re.IGNORECASE), path


BATCH = sorted((PACKAGE / "batch").rglob("*.py"))
# OpenAI's files of answers state what HTTP would have answered.
OPENAI_ANSWERS = PACKAGE / "batch/answers.py", "sruserve.server.http.error_mapping"


def test_batches_know_the_api_and_tasks_but_no_protocol() -> None:
    for path in BATCH:
        for name in own(path):
            if (path, name.rpartition(".")[0]) == OPENAI_ANSWERS:
                continue
            _, layer, *rest = name.split(".")
            assert layer in ("api", "batch", "model", "server"), f"{path} imports {name}"
            assert layer != "server" or rest[0] in BELOW_THE_API, f"{path} imports {name}"


SERVER = sorted((PACKAGE / "server").rglob("*.py"))


def test_rooms_of_the_server_import_in_one_direction() -> None:
    lines = lines_of(ROOMS)
    for path in SERVER:
        room = part_of(path, PACKAGE / "server")
        if room == "__init__":
            continue
        for name in own(path):
            _, layer, *rest = name.split(".")
            if layer == "server" and rest[0] != room:
                assert lines[rest[0]] < lines[room], f"{path} imports {name}"


# The parts of two rooms: each imports from those above it, and none from its own line.
PARTS = {
    "engine": (
        (
            "config",
            "constrained",
            "detokenizer",
            "job_kind",
            "metrics",
            "partial_translation",
            "state_cache",
            "threads",
        ),
        ("decoding_parameters", "snapshot"),
        ("results", "sequence_input"),
        ("job",),
        ("admission_queue", "result_dispatcher", "sequence_outputs"),
        ("job_engine", "sequence"),
        ("job_sequences", "sequence_results"),
        ("batch", "ledger", "output_reader", "roster", "sampling", "state_manager"),
        ("checkpoints", "graph_decoder", "pending", "scheduling"),
        ("step_sampler",),
        ("model_runner", "one_step", "translation"),
        ("settle",),
        ("burst_pipeline",),
        ("engine",),
    ),
    "kserve": (
        ("errors", "messages", "statistics"),
        ("datatypes", "parameters"),
        ("binary", "json_tensors", "signature"),
        ("infer_body", "sources"),
        ("tasks",),
        ("answer", "generate", "translate"),
        ("choosing",),
        ("sequences",),
        ("inference",),
        ("grpc", "http"),
    ),
}


@pytest.mark.parametrize("room", PARTS)
def test_the_parts_of_a_room_import_in_one_direction(room: str) -> None:
    lines, folder = lines_of(PARTS[room]), PACKAGE / "server" / room
    for path in sorted(folder.rglob("*.py")):
        part = part_of(path, folder)
        for name in own(path):
            if name.startswith(f"sruserve.server.{room}."):
                imports = name.split(".")[3]
                assert part == imports or lines[imports] < lines[part], f"{path} imports {name}"


def test_neither_the_server_nor_the_command_line_knows_a_family() -> None:
    names = FAMILIES.keys() - {"rnn"}  # what a config calls any stack
    families = "|".join([*names, "sru\\+\\+", "olrn", "sru[a-z]*layer"])
    word = re.compile(rf"(?<![\w-])({families})(?![\w-])", re.IGNORECASE)
    for path in [path for path in FILES if "server" in path.parts or path.name.startswith("cli")]:
        assert not word.search(path.read_text()), path


KERNELS = sorted((PACKAGE / "kernels").rglob("*.py"))


def test_kernels_import_nothing_but_torch_triton_and_the_standard_library() -> None:
    for path in KERNELS:
        for name in imported(path):
            outside = name.split(".")[0] in {"torch", "triton", *sys.stdlib_module_names}
            assert outside or f"{name}.".startswith("sruserve.kernels."), f"{path} imports {name}"
        assert "numpy" not in path.read_text(), path


def test_only_the_triton_kernels_import_triton() -> None:
    """A server without a GPU must run without Triton, so nothing else imports it."""
    for path in FILES:
        if path.parent == PACKAGE / "kernels/triton":
            continue
        assert not any(name.split(".")[0] == "triton" for name in imported(path)), path
        top = ast.parse(path.read_text()).body
        names = {node.module for node in top if isinstance(node, ast.ImportFrom) and node.module}
        kernels = {
            name for name in names if ".kernels.triton" in name and not name.endswith(".tiles")
        }
        assert not kernels, f"{path} imports a kernel at its top"
