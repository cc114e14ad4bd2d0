"""Where a worker computes, and what is said when models do not fit on a GPU."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sruserve.kernels import dispatch, torch_members
from sruserve.kernels.devices import DeviceError
from sruserve.kernels.self_check import KernelMismatch
from sruserve.model.config import read_config
from sruserve.model.errors import DTypeError
from sruserve.model.folder import load_model
from sruserve.server.auth import Tenant
from sruserve.server.engine import state_manager as states
from sruserve.server.errors import EngineFailure
from sruserve.server.repository import device, loader
from sruserve.server.repository.device import (
    MemoryEstimate,
    check_fit,
    check_gpu_memory,
    choose_device,
    memory_need,
    pool_bytes,
    prepare_gpu,
    worker_limit,
)
from sruserve.server.repository.loader import Loader
from sruserve.server.settings import Settings, SettingsError, key_ring, load_settings
from sruserve.server.state.token import StateSealer
from tests.support import save_random_model

GPU = torch.device("cuda", 0)


def test_the_worker_may_use_what_was_asked_or_its_part_of_nine_tenths_of_what_is_free() -> None:
    assert worker_limit(0, free=1000, total=4000, workers=1) == 900
    assert worker_limit(700, free=500, total=4000, workers=1) == 700
    gib = 1 << 30
    limit = worker_limit(0, free=1, total=16 * gib, workers=4)  # however much others hold
    assert limit == worker_limit(0, free=9 * gib, total=16 * gib, workers=4) < 0.9 * 4 * gib
    assert worker_limit(3 * gib, free=16 * gib, total=16 * gib, workers=4) == 3 * gib


@pytest.mark.parametrize("workers", [2, 8, 15, 30])
def test_workers_leave_room_for_the_cuda_context_of_each(workers: int) -> None:
    total, context = 16 << 30, 600 << 20
    limit = worker_limit(0, free=total, total=total, workers=workers)
    assert workers * (limit + (context if limit else 0)) <= total
    assert limit == 0 or worker_limit(limit, total, total, workers) == limit
    with pytest.raises(SettingsError, match="for the CUDA context of each"):
        worker_limit(total // workers, free=total, total=total, workers=workers)


def test_workers_cannot_be_given_more_than_the_gpu_has() -> None:
    with pytest.raises(SettingsError) as caught:
        worker_limit(1000, free=4000, total=4000, workers=4)
    for part in ("SRUSERVE_GPU_MEMORY_BYTES=1000", "4 workers", "4000", "SRUSERVE_WORKERS"):
        assert part in str(caught.value)
    with pytest.raises(SettingsError, match=r"lower it$"):
        worker_limit(4001, free=4000, total=4000, workers=1)


def test_models_share_the_limit_and_the_first_that_does_not_fit_is_named() -> None:
    needs = [MemoryEstimate("a", 300, 100), MemoryEstimate("b", 500, 100)]
    check_fit(needs, 1000)
    with pytest.raises(SettingsError) as caught:
        check_fit(needs, 999)
    for part in (
        "b does not fit",
        "needs 600 bytes (500 of weights, 100 of states)",
        "599 of this worker's 999 are left",
        "SRUSERVE_GPU_MEMORY_BYTES",
        "SRUSERVE_STATE_POOL_BYTES",
        "SRUSERVE_DTYPE",
    ):
        assert part in str(caught.value)


def test_the_need_of_a_model_is_what_its_tensors_and_its_pool_take(tmp_path: Path) -> None:
    config = read_config(save_random_model(tmp_path / "m", vocab_size=40) / "config.json")
    matrices = 40 * 16 + 16 * 96 + 24 * 72 + 24 * 40
    vectors = 2 * (2 * 24 + 2 * 24 + 1) + 40
    assert memory_need("m", config, torch.float32, 7) == MemoryEstimate(
        "m", 4 * (matrices + vectors), 7
    )
    assert memory_need("m", config, torch.bfloat16, 7) == MemoryEstimate(
        "m", 2 * matrices + 4 * vectors, 7
    )


def test_a_pool_that_nobody_sized_takes_a_quarter_of_what_a_gpu_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gib = 1 << 30
    monkeypatch.setattr(device, "memory_use", lambda on: (20 * gib, 9 * gib, 4 * gib))
    assert pool_bytes(load_settings(), GPU) == 4 * gib
    assert pool_bytes(load_settings(), torch.device("cpu")) == 256 << 20
    assert pool_bytes(load_settings(state_pool_bytes=7 << 20), GPU) == 7 << 20
    monkeypatch.setattr(device, "memory_use", lambda on: (gib, gib, gib - 4))
    assert pool_bytes(load_settings(), GPU) == 256 << 20  # as was checked before it was loaded


def fit(settings: Settings, *folders: Path) -> None:
    check_gpu_memory(settings, folders, dict.fromkeys((path.name for path in folders), None), GPU)


def test_torch_is_bound_to_the_limit_before_the_models_are_held_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fractions: list[float] = []
    monkeypatch.setattr(device, "use_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8 << 20, 16 << 20))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, _: fractions.append(share)
    )
    one, two = (save_random_model(tmp_path / name, vocab_size=9) for name in ("one", "two"))
    fit(load_settings(state_pool_bytes=3 << 20), one, two)
    assert fractions == [pytest.approx(0.45)]
    with pytest.raises(SettingsError, match="two does not fit"):
        fit(load_settings(state_pool_bytes=4 << 20), one, two)
    with pytest.raises(SettingsError, match="one does not fit"):
        fit(load_settings(state_pool_bytes=8 << 20, workers=2), one, two)


def test_a_gpu_that_another_process_has_alone_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def busy(_: torch.device) -> None:
        raise RuntimeError("CUDA error: device(s) is/are busy or unavailable\nCUDA kernel errors …")

    monkeypatch.setattr(device, "use_device", busy)
    with pytest.raises(
        SettingsError, match=r"^SRUSERVE_DEVICE: cannot use cuda:0: .* unavailable$"
    ):
        fit(load_settings())


def test_a_device_that_is_not_there_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> torch.device:
        raise DeviceError(f"cannot compute on {name}")

    monkeypatch.setattr(device, "resolve_device", refuse)
    with pytest.raises(SettingsError, match="SRUSERVE_DEVICE: cannot compute on cuda:3"):
        choose_device("cuda:3")


def test_a_gpu_that_is_passed_over_is_reported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sruserve.server")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Example")
    assert choose_device("auto").type == "cpu"
    assert "computing on cpu" in caplog.text
    assert "not used: cuda:0 (Example) has compute capability 7.5" in caplog.text
    caplog.clear()
    assert choose_device("cpu").type == "cpu"
    assert "not used" not in caplog.text


def test_a_server_whose_kernels_are_interpreted_says_that_they_are_slow(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with dispatch.interpreting(True):
        choose_device("cpu")
    assert "TRITON_INTERPRET is set" in caplog.text
    caplog.clear()
    choose_device("cpu")
    assert "TRITON_INTERPRET" not in caplog.text


def load(monkeypatch: pytest.MonkeyPatch, folder: Path, **options: Any) -> None:
    """Load one model as a worker on a GPU would."""
    monkeypatch.setattr(loader, "use_device", lambda _: None)
    monkeypatch.setattr(loader, "load_any", lambda path, *_: options["load_model"](path))
    settings = load_settings(device="cuda")
    Loader(settings, GPU, None, Tenant()).load(folder)  # type: ignore[arg-type]


def test_a_gpu_that_is_full_while_a_model_is_loaded_is_reported_like_one_that_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def full_when_warmed_up(path: Path) -> None:
        raise EngineFailure("m does not run") from torch.OutOfMemoryError("CUDA out of memory")

    def no_context(path: Path) -> None:
        raise RuntimeError("CUDA error: out of memory\nand a stack")

    def broken(path: Path) -> None:
        raise EngineFailure("m does not run") from ZeroDivisionError()

    for fails in (full, full_when_warmed_up, no_context):
        with pytest.raises(SettingsError, match=r"ran out of memory while m was.*STATE_POOL_BYTES"):
            load(monkeypatch, tmp_path / "m", load_model=fails)
    with pytest.raises(EngineFailure, match="m does not run"):
        load(monkeypatch, tmp_path / "m", load_model=broken)


def test_a_pool_that_the_host_cannot_allocate_is_reported_with_its_setting(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")

    monkeypatch.setattr(states, "StatePool", full)
    loader = Loader(load_settings(), torch.device("cpu"), None, Tenant())  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"host ran out of memory.*SRUSERVE_STATE_POOL_BYTES"):
        loader.load(folders / "question")


@pytest.fixture
def wrong_kernels(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """A GPU that has room, and kernels that are wrong there; the dtypes that were tried."""
    tried: list[torch.dtype] = []

    def check(on: torch.device, dtype: torch.dtype) -> None:
        assert on == GPU
        tried.append(dtype)
        raise KernelMismatch("the scores of a step are 7 off")

    monkeypatch.setattr(device, "check_gpu_memory", lambda *_: None)
    monkeypatch.setattr(device, "check_kernels", check)
    monkeypatch.setattr(device, "describe_device", lambda on: "cuda:0 (a GPU)")
    return tried


def test_a_gpu_whose_kernels_are_wrong_is_not_served_from(
    folders: Path, wrong_kernels: list[torch.dtype], caplog: pytest.LogCaptureFixture
) -> None:
    paths = sorted(folders.iterdir())
    dtypes: dict[str, Any] = dict.fromkeys([path.name for path in paths], "bfloat16")
    assert prepare_gpu(load_settings(device="auto"), paths, dtypes, GPU) == torch.device("cpu")
    assert "7 off; serving on the CPU" in caplog.text
    with pytest.raises(SettingsError, match=r"SRUSERVE_DEVICE=cuda: .* 7 off, on cuda:0"):
        prepare_gpu(load_settings(device="cuda"), paths, dtypes, GPU)
    assert wrong_kernels == [torch.bfloat16] * 2


def test_kernels_are_checked_in_every_dtype_that_is_served(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[torch.dtype] = []
    monkeypatch.setattr(device, "check_gpu_memory", lambda *_: None)
    monkeypatch.setattr(device, "check_kernels", lambda on, dtype: tried.append(dtype))
    paths = sorted(folders.iterdir()) * 2
    names = [path.name for path in paths]
    dtypes: dict[str, Any] = dict.fromkeys(names)
    assert prepare_gpu(load_settings(device="auto"), paths, dtypes, GPU) == GPU
    assert tried == [torch.float32]


def test_auto_leaves_layers_that_no_gpu_computes_faster_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[list[str]] = []
    checked: list[torch.dtype] = []

    def count(_: Settings, paths: list[Path], *__: object) -> None:
        counted.append([path.name for path in paths])

    monkeypatch.setattr(device, "check_gpu_memory", count)
    monkeypatch.setattr(device, "check_kernels", lambda *_: None)
    monkeypatch.setattr(device, "check_other_layers", lambda _, dtype: checked.append(dtype))
    sru = save_random_model(tmp_path / "sru", vocab_size=9)
    gru = save_random_model(tmp_path / "gru", vocab_size=9, model_type="gru")
    atr = save_random_model(tmp_path / "atr", vocab_size=9, model_type="atr")
    attending: dict[str, Any] = {"model_type": "srupp", "proj_size": 8, "window": 3}
    srupp = save_random_model(tmp_path / "srupp", vocab_size=9, **attending)
    dtypes: dict[str, Any] = dict.fromkeys(["sru", "gru", "atr", "srupp"])
    prepare_gpu(load_settings(device="auto"), [sru, atr, srupp], dtypes, GPU)
    assert not checked
    prepare_gpu(load_settings(device="cuda"), [sru, atr, srupp], dtypes, GPU)
    assert checked == [torch.float32], "cuda uses them, if they are right"
    prepare_gpu(load_settings(device="auto"), [gru, atr, srupp], dtypes, GPU)
    assert checked == [torch.float32] * 2, "auto uses what an H100 computes faster"
    assert counted == [["sru"], ["sru", "atr", "srupp"], ["gru"]]
    assert "not used" not in caplog.text
    cpu = prepare_gpu(load_settings(device="auto"), [atr, srupp], dtypes, GPU)
    assert cpu == torch.device("cpu")
    assert "the GPU is not used: none has been measured to be faster" in caplog.text
    assert len(counted) == 3


def test_auto_serves_such_a_model_on_the_cpu_beside_others_on_the_gpu_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    devices: list[torch.device] = []

    def load_any(path: Path, dtype: Any, on: torch.device, *rest: Any) -> Any:
        devices.append(on)
        return load_model(path, dtype)

    monkeypatch.setattr(loader, "use_device", lambda _: None)
    monkeypatch.setattr(loader, "load_any", load_any)
    atr = save_random_model(tmp_path / "atr", vocab_size=9, model_type="atr")
    sealer = StateSealer(key_ring(load_settings()), 0, 1 << 20)
    for name, dtype in (("auto", None), ("cuda", None), ("auto", "float16")):
        settings = load_settings(device=name, dtype=dtype)
        if dtype == "float16":  # which no CPU computes
            with pytest.raises(DTypeError):
                Loader(settings, GPU, sealer, Tenant()).load(atr)
            continue
        served = Loader(settings, GPU, sealer, Tenant()).load(atr)
        served.engine.stop(0)
    assert devices == [torch.device("cpu"), GPU, GPU]
    assert caplog.text.count("atr: auto computes its layers on the CPU") == 1


def test_float16_on_the_cpu_stops_the_start_with_what_to_use(folders: Path) -> None:
    settings = load_settings(device="cpu", dtype="float16", model_folders=(folders / "ids",))
    loader = Loader(settings, torch.device("cpu"), None, Tenant())  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="set the dtype to bfloat16"):
        loader.load(folders / "ids")


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # as where it is not installed: importing it fails

import threading, time, httpx, uvicorn
from sruserve.server.app import Application
from sruserve.server.http.uvicorn_http import HttpProtocol
from sruserve.server.settings import load_settings

application = Application(load_settings())
config = uvicorn.Config(
    application, port=0, ws="none", loop="uvloop", http=HttpProtocol, log_config=None
)
server = uvicorn.Server(config)
thread = threading.Thread(target=server.run)
thread.start()
while not server.started and thread.is_alive():
    time.sleep(0.01)
port = server.servers[0].sockets[0].getsockname()[1]
body = {"model": "shakespeare", "prompt": "ROMEO:", "max_tokens": 5, "seed": 1}
reply = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)
server.should_exit = True
thread.join()
import torch
assert not torch.cuda.is_available()
assert not [name for name in sys.modules if name.startswith("triton.")]
print(reply.status_code, reply.json()["choices"][0]["finish_reason"])
"""


def test_a_server_without_triton_and_cuda_starts_and_serves() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRITON],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "200 length\n", done.stderr


def test_a_torch_that_lacks_a_member_or_is_newer_is_logged_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sruserve.server")
    choose_device("cpu")
    assert "torch" not in caplog.text
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    choose_device("cpu")
    assert caplog.text.count("torch 2.99.0 is newer than sruserve was tested with") == 1
    caplog.clear()
    missing = {"torch.ops.example": "steps are slower"}
    monkeypatch.setattr(torch_members, "missing_members", lambda: missing)
    choose_device("cpu")
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "2.99.0 is newer" in warning.getMessage()
    assert "without torch.ops.example, steps are slower" in warning.getMessage()
    assert caplog.text.count("torch 2.99.0") == 1
