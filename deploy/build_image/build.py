"""Build images with buildah, in a store of their own, and measure them."""

import json
from pathlib import Path

from deploy.build_image.shell import Shell
from deploy.build_image.wheels import sha256

TARGET = "cpu"


class Store:
    """Images below a work folder. work: that folder. options: by which every tool finds them."""

    def __init__(self, shell: Shell, work: Path) -> None:
        self._shell, self.work = shell, work
        # Copies of whole layers: slow, but they need no file system that another one may lack.
        self.options = (
            *("--root", str(work / "images"), "--runroot", str(work / "running")),
            *("--storage-driver", "vfs"),
        )

    def add(self, name: str, tree: Path) -> str:
        """Make an image of one layer from a folder; returns its name."""
        image = f"localhost/sruserve-{name}"
        container = self._shell.output("buildah", *self.options, "from", "scratch").splitlines()[-1]
        buildah = ("buildah", *self.options)
        self._shell.run("tar", "--create", "--file", f"{tree}.tar", "--directory", tree, ".")
        self._shell.run(*buildah, "add", container, f"{tree}.tar", "/")
        self._shell.run(*buildah, "commit", "--rm", container, image)
        Path(f"{tree}.tar").unlink()
        return image

    def build(self, python: str, builder: str, wheels: Path, torch: Path) -> str:
        """Build the Dockerfile without a network; returns the image's name.

        python, builder: the base images. wheels: the folder that pip installs from. torch: the
            wheel in it, whose hash no lock file has.
        """
        image = f"localhost/sruserve:{TARGET}"
        self._shell.run(
            *("unshare", "--net", "buildah", *self.options),
            *("build", "--isolation", "chroot", "--format", "docker", "--pull-never"),
            *("--target", TARGET, "--tag", image),
            *("--build-arg", f"PYTHON_IMAGE={python}", "--build-arg", f"BUILDER_IMAGE={builder}"),
            *("--build-context", f"wheels={wheels.resolve()}", "--build-arg", "PIP_NO_INDEX=1"),
            *("--build-arg", f"TORCH_HASH=sha256:{sha256(torch)}", "."),
        )
        return image

    def size(self, image: str) -> tuple[int, list[tuple[int, str]]]:
        """The bytes of an image, and of each of its layers with what made it."""
        podman = ("podman", *self.options)
        (details,) = json.loads(self._shell.output(*podman, "image", "inspect", image))
        history = json.loads(self._shell.output(*podman, "history", "--format", "json", image))
        layers = [(layer["size"], layer["CreatedBy"]) for layer in history if layer["size"]]
        return details["Size"], layers[::-1]


def describe(size: int, layers: list[tuple[int, str]]) -> str:
    """The size of an image, in lines."""
    lines = [f"{size / 1e6:.0f} MB in {len(layers)} layers:"]
    lines += [f"  {each / 1e6:4.0f} MB  {made_by[:70]}" for each, made_by in layers]
    return "\n".join(lines)
