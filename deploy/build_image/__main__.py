"""Build the image for the CPU without Docker, run it as in production, and check what it does.

    sudo python3 -m deploy.build_image             # in the root of the repository: some minutes
    sudo python3 -m deploy.build_image --help

Needs root on Debian and its packages debootstrap, buildah, podman and runc. No daemon runs. Steps:

1. pip downloads wheels for the base's Python into a folder; requirements.lock holds their hashes.
2. debootstrap makes two base images of Debian: with Python alone, and with gcc and pip as well.
3. buildah builds the target `cpu` of the Dockerfile on them, in a network namespace without
   interfaces, so nothing is downloaded that the folder of wheels lacks.
4. podman runs the image: read-only, without capabilities, with limits of memory and CPU.
5. The probes, a classification, a streamed completion and the metrics are checked over HTTP.
6. After SIGTERM the exit code must be 0, and no process, port, mount or control group be left.

Everything lies in a work folder, which is deleted at the end, at a failure and at Ctrl-C.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from deploy.build_image.bases import Bases
from deploy.build_image.build import TARGET, Store, describe
from deploy.build_image.container import Container, Limits
from deploy.build_image.questions import ask
from deploy.build_image.shell import Failed, Shell, mounts_below, remove
from deploy.build_image.wheels import fill, torch_wheel

TOOLS = {"debootstrap": "debootstrap", "buildah": "buildah", "podman": "podman", "runc": "runc"}
MAX_BYTES = 900_000_000
ROOT = Path(__file__).parents[2]


def arguments() -> argparse.Namespace:
    introduction, _, steps = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python3 -m deploy.build_image",
        description=introduction,
        epilog=steps,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--wheels", type=Path, metavar="FOLDER", help="wheels to install; pip adds missing ones")
    add("--torch-index", default="", metavar="ADDRESS", help="pip's index with torch's CPU build")
    add("--mirror", default="", metavar="ADDRESS", help="Debian's mirror; default: that of apt")
    add("--suite", default="bookworm", help="Debian's release in the image; default: bookworm")
    add("--memory", default="2g", help="memory limit of the container; default: 2g")
    add("--cpus", default="1.5", help="CPU limit of the container; default: 1.5")
    add("--work", type=Path, metavar="FOLDER", help="a new folder for all files, 8 GB; then kept")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if os.geteuid() != 0:
        return _fail("needs root: debootstrap and the mounts of a container do")
    if missing := [package for tool, package in TOOLS.items() if shutil.which(tool) is None]:
        packages = " ".join(missing)
        return _fail(f"run: apt-get install --no-install-recommends {packages}")
    if options.work is not None and options.work.exists():
        return _fail(f"{options.work} exists: name a folder that does not")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    work = options.work or Path(tempfile.mkdtemp(prefix="build-image-", dir="/var/tmp"))
    work.mkdir(exist_ok=True)
    try:
        prove(options, work.resolve())
    except Failed as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("interrupted")
    finally:
        if left := remove(work) if options.work is None else mounts_below(work):
            print(f"left mounted, so {work} was not deleted: {', '.join(left)}", file=sys.stderr)
    return 0


def prove(options: argparse.Namespace, work: Path) -> None:
    """Build, run and check; raises `Failed`."""
    shell = Shell(work / "log")
    store = Store(shell, work)
    bases = Bases(shell, store, options.suite, options.mirror)

    shell.step("base images")
    python = bases.make("base", bases.RUNTIME)
    builder = bases.make("builder", bases.BUILDER)

    shell.step("wheels")
    wheels = options.wheels or work / "wheels"
    fill(shell, wheels, bases.python_version, options.torch_index)

    shell.step(f"Dockerfile, target {TARGET}, without a network")
    image = store.build(python, builder, wheels, torch_wheel(wheels))
    size, layers = store.size(image)
    shell.say(describe(size, layers))
    if size > MAX_BYTES:
        shell.say(f"WARNING: more than {MAX_BYTES / 1e6:.0f} MB")

    shell.step("container")
    limits = Limits(options.memory, options.cpus)
    with Container(shell, store, image, limits) as container:
        shell.say(f"ready after {container.wait_ready():.1f} s")
        container.check_confinement()
        for line in ask(container.port):
            shell.say(line)
        container.check_health()
        shell.say(container.describe_memory())
        shell.say(f"SIGTERM: exit code 0 after {container.stop():.1f} s")
        shell.say("the container's log:")
        shell.say(container.log())
    container.check_nothing_left()
    shell.say("no process, port, mount or control group is left")
    shell.step("done")


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
