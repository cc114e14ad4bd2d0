"""Build the CPU kernel at install, and the package's page; pyproject.toml has all the rest."""

import re
import tomllib
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

GCC_FLAGS = [
    "-std=c11",
    "-O3",
    "-g0",  # debug information of inlined functions takes a third of the compile time
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",  # only explicit FMAs, so that all loops round alike
    "-fvisibility=hidden",
]


class BuildKernel(build_ext):  # type: ignore[misc]
    """Continues without the kernel, and says so, if it cannot be compiled."""

    def build_extension(self, ext: Extension) -> None:
        if self.compiler.compiler_type != "msvc":
            ext.extra_compile_args = GCC_FLAGS
        try:
            super().build_extension(ext)
        except Exception as error:
            print(
                f"\nsruserve: the CPU kernel was not compiled ({error}). The install continues, "
                "but the recurrence will run in plain torch, many times slower. For the kernel, "
                "install GCC or Clang on a 64-bit machine and reinstall sruserve.\n"
            )

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return list(ext.export_symbols)  # a plain library without a PyInit function


def package_page(readme: str, repository: str) -> str:
    """The README for readers outside of the repository.

    Its links are absolute, or plain text; its pictures are absolute, or left out.
    """

    def link(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        if not repository:
            return "" if picture else text
        kind = "raw" if picture else "blob"
        address = repository if target.startswith("#") else f"{repository}/{kind}/HEAD/"
        return f"{picture}[{text}]({address}{target})"

    parts = re.split(r"(^```.*?^```)", readme, flags=re.DOTALL | re.MULTILINE)
    for number in range(0, len(parts), 2):  # programs are between
        parts[number] = re.sub(r"(!?)\[([^]]*)\]\((?!\w+:)([^)]*)\)", link, parts[number])
    return "".join(parts)


def project_urls(repository: str) -> dict[str, str]:
    """The links beside the package's page."""
    if not repository:
        return {}
    return {
        "Repository": repository,
        "Documentation": f"{repository}/tree/HEAD/docs",
        "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
    }


ROOT = Path(__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
REPOSITORY = PROJECT["tool"]["sruserve"]["repository"].rstrip("/")

setup(
    long_description=package_page((ROOT / "README.md").read_text("utf-8"), REPOSITORY),
    long_description_content_type="text/markdown",
    project_urls=project_urls(REPOSITORY),
    ext_modules=[
        Extension(
            "sruserve.kernels.cpu._kernel",
            ["sruserve/kernels/cpu/kernel.c"],
            depends=glob("sruserve/kernels/cpu/*.h"),
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernel},
)
