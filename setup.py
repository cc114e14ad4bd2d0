"""Builds the CPU kernel at install; everything else about the package is in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

GCC_FLAGS = [
    "-std=c11",
    "-O3",
    "-g0",  # to describe what is inlined for a debugger takes a third of the time
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",  # the source says where to fuse: the same in every loop
    "-fvisibility=hidden",
]


class BuildKernel(build_ext):  # type: ignore[misc]
    """Goes on without the kernel, and says so, where it cannot be compiled."""

    def build_extension(self, ext: Extension) -> None:
        if self.compiler.compiler_type != "msvc":
            ext.extra_compile_args = GCC_FLAGS
        try:
            super().build_extension(ext)
        except Exception as error:
            print(
                f"\nsruserve: the CPU kernel was not compiled ({error}). The install goes on; the "
                "recurrence will run in plain torch, many times slower. The kernel needs GCC or "
                "Clang and a 64-bit machine.\n"
            )

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return list(ext.export_symbols)  # a plain library: there is no PyInit to export


setup(
    ext_modules=[
        Extension(
            "sruserve.kernels._cpu",
            ["sruserve/kernels/cpu.c"],
            depends=glob("sruserve/kernels/cpu*.h"),
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernel},
)
