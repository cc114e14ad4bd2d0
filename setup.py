"""Build the CPU kernel at install; pyproject.toml has the rest of the package's description."""

from glob import glob

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


setup(
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
