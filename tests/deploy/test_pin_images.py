"""The script that pins the images: it runs here, but the registries' answers are made up."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIGEST = "sha256:" + "0123456789abcdef" * 4

# Answers as `docker buildx imagetools inspect --format '{{json .Manifest.Digest}}' IMAGE` does.
DOCKER = """#!/bin/sh
[ "$1 $2 $3 $4 $5" = "buildx imagetools inspect --format {{json .Manifest.Digest}}" ] || exit 2
echo "$6" >> asked
echo '"ANSWER"'
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy" / "pin-images.sh", tmp_path / "deploy")
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    return tmp_path


def pin(checkout: Path, answer: str = DIGEST) -> subprocess.CompletedProcess[str]:
    commands = checkout / "commands"
    commands.mkdir(exist_ok=True)
    docker = commands / "docker"
    docker.write_text(DOCKER.replace("ANSWER", answer))
    docker.chmod(0o755)
    return subprocess.run(
        [str(checkout / "deploy" / "pin-images.sh")],
        env=os.environ | {"PATH": f"{commands}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_every_image_gets_its_digest_and_all_else_in_the_file_stays(checkout: Path) -> None:
    (checkout / ".env").write_text("SECRET=x\nGRAFANA_IMAGE=old\n")
    for _ in range(2):
        done = pin(checkout)
        assert done.returncode == 0, done.stderr
        secret, *lines = (checkout / ".env").read_text().splitlines()
        assert secret == "SECRET=x"
        pinned = dict(line.split("=", 1) for line in lines)
        assert pinned.keys() == {"PYTHON_IMAGE", "PROMETHEUS_IMAGE", "GRAFANA_IMAGE"}
        assert all(image.endswith(f"@{DIGEST}") for image in pinned.values())
        assert pinned["PYTHON_IMAGE"].startswith("python:3.")
    assert stat.S_IMODE((checkout / ".env").stat().st_mode) == 0o600
    assert [file.name for file in checkout.glob(".env*")] == [".env"]


@pytest.mark.parametrize("answer", ["", "sha256:0", "Name: python MediaType: x"])
def test_without_a_digest_nothing_is_changed(checkout: Path, answer: str) -> None:
    (checkout / ".env").write_text("SECRET=x\n")
    done = pin(checkout, answer)
    assert done.returncode == 1
    assert "no digest of python:" in done.stderr
    assert (checkout / ".env").read_text() == "SECRET=x\n"
    assert [file.name for file in checkout.glob(".env*")] == [".env"]
