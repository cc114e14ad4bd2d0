"""The choice of the device, and the message if it cannot be used; the GPU is a stand-in."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sruserve.kernels.devices import (
    DeviceError,
    describe_device,
    resolve_device,
    use_device,
    why_no_gpu,
)

Install = Any


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    """`install("3.9.0")`: a package named triton of that version, which must not be imported."""

    def run(version: str | None) -> None:
        monkeypatch.delitem(sys.modules, "triton", raising=False)
        if version is None:
            monkeypatch.setitem(sys.modules, "triton", None)
            return
        (tmp_path / "triton").mkdir(exist_ok=True)
        file = tmp_path / "triton" / "__init__.py"
        file.write_text(f"__version__ = '{version}'\nraise AssertionError('imported')\n")
        monkeypatch.syspath_prepend(tmp_path)

    return run


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, install: Install) -> Any:
    """`gpus((9, 0), (7, 5))`: torch sees GPUs of these capabilities, and Triton is installed."""

    def run(
        *capabilities: tuple[int, int], cuda: str | None = "13.0", triton: str | None = "3.9.0"
    ) -> None:
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: capabilities[i])
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"Example {i}")
        install(triton)

    return run


@pytest.mark.parametrize(
    ("name", "expected"),
    [("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")],
)
def test_a_gpu_that_the_kernels_can_run_on_is_taken_by_its_number(
    gpus: Any, name: str, expected: str
) -> None:
    gpus((8, 0), (9, 0))
    assert str(resolve_device(name)) == expected


@pytest.mark.parametrize(
    ("capabilities", "environment", "message"),
    [
        ([], {"cuda": None}, "no CUDA: install the CUDA build of torch"),
        ([], {}, "sees no GPU.*nvidia-smi"),
        ([(7, 5)], {}, r"Example 0\) has compute capability 7\.5, but the kernels need 8\.0"),
        ([(9, 0)], {"triton": None}, "not installed: pip install triton"),
        ([(9, 0)], {"triton": "3.5.1"}, r"3\.5 is installed: pip install --upgrade triton"),
        ([(9, 0)], {"triton": ""}, "of unknown version is installed"),
    ],
    ids=["no CUDA", "no GPU", "an old GPU", "no Triton", "an old Triton", "another Triton"],
)
def test_auto_takes_the_cpu_and_cuda_says_what_is_missing(
    gpus: Any, capabilities: list[tuple[int, int]], environment: dict[str, Any], message: str
) -> None:
    gpus(*capabilities, **environment)
    assert resolve_device("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:0"):
        with pytest.raises(DeviceError, match=f"cannot compute on {name}: .*{message}"):
            resolve_device(name)


@pytest.mark.parametrize("version", ["3.6.0", "3.6.0+git1234", "3.10.1", "4.0.0"])
def test_versions_of_triton_are_compared_as_numbers(gpus: Any, version: str) -> None:
    gpus((9, 0), triton=version)
    assert why_no_gpu() == ""
    assert "triton" not in sys.modules


@pytest.mark.parametrize(
    ("count", "message"), [(1, "there is 1 GPU, numbered from 0"), (2, "there are 2 GPUs")]
)
def test_a_gpu_that_is_not_there_is_counted_out(gpus: Any, count: int, message: str) -> None:
    gpus(*[(9, 0)] * count)
    with pytest.raises(DeviceError, match=rf"{message}.*, so cuda:5 does not exist"):
        resolve_device("cuda:5")


@pytest.mark.parametrize("name", ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "mps"])
def test_a_name_of_no_device_is_refused(name: str) -> None:
    with pytest.raises(DeviceError, match="use auto, cpu, cuda or cuda:N"):
        resolve_device(name)


def test_a_device_is_described_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="Example", total_memory=3 << 29, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    description = describe_device(torch.device("cuda", 1))
    assert description == "cuda:1 (Example, 1.5 GiB, compute capability 9.0)"
    assert describe_device(torch.device("cpu")) == "cpu"


def test_a_thread_gets_its_gpu_and_no_setting_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses a device without a number."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name in ("cpu", "cuda:1", "cuda"):
        use_device(torch.device(name))
    assert chosen == [1, 0]
