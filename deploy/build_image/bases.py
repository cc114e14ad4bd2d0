"""Make base images of Debian's own packages with debootstrap."""

from deploy.build_image.build import Store
from deploy.build_image.shell import Failed, Shell

_USELESS = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")


class Bases:
    """Base images of one release.

    RUNTIME, BUILDER: their packages beside the smallest system.
    python_version: of `python3` in the images that were made, such as "3.11".
    """

    RUNTIME = ("python3",)
    BUILDER = ("python3", "gcc", "libc6-dev", "python3-pip")

    def __init__(self, shell: Shell, store: Store, suite: str, mirror: str) -> None:
        self._shell, self._store, self._suite = shell, store, suite
        self._mirror = mirror or self._mirror_of_apt()
        self._downloads = store.work / "packages"
        self._downloads.mkdir()
        self.python_version = ""

    def make(self, name: str, packages: tuple[str, ...]) -> str:
        """Make an image; returns its name."""
        tree = self._store.work / name
        self._shell.run(
            *("debootstrap", "--variant=minbase", f"--cache-dir={self._downloads}"),
            *(f"--include={','.join(packages)}", self._suite, tree, self._mirror),
            environment={"DEBIAN_FRONTEND": "noninteractive"},
        )
        for folder in _USELESS:
            self._shell.run("find", tree / folder, "-mindepth", "1", "-delete")
        self._shell.run("find", tree / "var/lib/apt/lists", "-type", "f", "-delete")
        self._shell.run("find", tree / "var/cache", "-type", "f", "-delete")
        self.python_version = (tree / "usr/bin/python3").readlink().name.removeprefix("python")
        image = self._store.add(name, tree)
        self._shell.say(f"{image}: Debian {self._suite}, {', '.join(packages)}")
        self._shell.run("rm", "--recursive", "--one-file-system", tree)
        return image

    def _mirror_of_apt(self) -> str:
        mirrors = self._shell.output(
            *("apt-get", "indextargets", "--format", "$(REPO_URI)"),
            *("Created-By: Packages", "Origin: Debian", f"Codename: {self._suite}"),
        )
        if not mirrors:
            raise Failed(f"apt has no mirror of Debian {self._suite}: name one with --mirror")
        return mirrors.splitlines()[0]
