from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "sruserve.kernels._cpu",
            ["sruserve/kernels/cpu.c"],
            optional=True,
            extra_compile_args=["-std=c11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fvisibility=hidden"],
        )
    ],
)
