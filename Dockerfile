# The server in a container: `cpu` (what is built unless another target is named) or `gpu`.
#
#   docker build --target cpu --tag sruserve .
#   docker run --rm --publish 127.0.0.1:8000:8000 --publish 127.0.0.1:8001:8001 sruserve
#
#   docker build --target gpu --tag sruserve:gpu .
#   docker run --rm --gpus 1 --publish 127.0.0.1:8000:8000 sruserve:gpu
#
# The first stages fill virtual environments; the last ones only run them.

# All stages must use one image: the environment links to its Python and its C library.
# deploy/pin-images.sh finds the digest that makes it the same image tomorrow.
ARG PYTHON_IMAGE=python:3.12-slim-bookworm
# For a build without a network: the same image with gcc, libc6-dev, pip and Python's headers.
ARG BUILDER_IMAGE=${PYTHON_IMAGE}

# A folder of wheels, from which pip then takes packages, too: `--build-context wheels=FOLDER`.
FROM scratch AS wheels

FROM ${BUILDER_IMAGE} AS builder

# PIP_NO_INDEX=1: pip takes packages from the folder of wheels alone.
ARG PIP_NO_INDEX=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    PIP_FIND_LINKS=/wheels PIP_NO_INDEX=${PIP_NO_INDEX}

RUN if ! command -v gcc; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/*; \
    fi \
 && python3 -m venv --without-pip /opt/sruserve

WORKDIR /src
COPY constraints.txt requirements.lock requirements-torch.lock ./


FROM builder AS cpu-environment

# The package index that PyTorch alone is taken from, to get its CPU build where pip's own index
# has the CUDA one. Empty: pip's own. docs/deployment.md says which address to give.
ARG TORCH_INDEX=""
# The hash of the file that is taken from there, or else from the folder of wheels, as pip writes it:
# sha256:…
ARG TORCH_HASH=""

# PyTorch is most of the download. Alone in its layer, it stays when the code changes.
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,from=wheels,target=/wheels \
    if [ -n "${TORCH_INDEX}${TORCH_HASH}" ]; then \
        echo "$(grep ^torch== constraints.txt)${TORCH_HASH:+ --hash=${TORCH_HASH}}" > torch.txt \
        && pip --python /opt/sruserve/bin/python install \
            ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} --no-deps --requirement torch.txt; \
    else \
        pip --python /opt/sruserve/bin/python install \
            --no-deps --require-hashes --requirement requirements-torch.lock; \
    fi

RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,from=wheels,target=/wheels \
    pip --python /opt/sruserve/bin/python install \
        --no-deps --require-hashes --requirement requirements.lock

COPY . .
RUN pip --python /opt/sruserve/bin/python install --no-deps --no-build-isolation --no-index .

# Leave out what no server reads: PyTorch's C++ headers, tests and tools (it needs torch_shm_manager
# alone), the tests of other packages, compiled code of sympy, which PyTorch imports only to compile
# models, and symbols for debuggers. Libraries in *.libs were patched, which `strip` may break.
RUN find /opt/sruserve/lib -depth -type d \
        \( -path "*/torch/include" -o -path "*/torch/test" -o -path "*/site-packages/*/tests" \
        -o -path "*/sympy/*__pycache__" \) -exec rm -r {} + \
 && find /opt/sruserve/lib -path "*/torch/bin/*" -type f ! -name torch_shm_manager -delete \
 && find /opt/sruserve/lib -name "*.so" ! -path "*.libs/*" -size +1M \
        -exec strip --strip-unneeded {} +

# Without its compiled kernel the server runs too, many times slower, so such an image must not be.
# -I: the installed package, not the one in this folder.
RUN /opt/sruserve/bin/python -I -c \
    "import sys, sruserve.server.app, sruserve.kernels.cpu.library as cpu; sys.exit(not cpu.available() and 'no compiled kernel')"


FROM builder AS gpu-environment

# PyTorch's CUDA build, the CUDA libraries and its own Triton.
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,from=wheels,target=/wheels \
    pip --python /opt/sruserve/bin/python install \
        --no-deps --require-hashes --requirement requirements-torch.lock

RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,from=wheels,target=/wheels \
    pip --python /opt/sruserve/bin/python install \
        --no-deps --require-hashes --requirement requirements.lock

COPY . .
RUN pip --python /opt/sruserve/bin/python install --no-deps --no-build-isolation --no-index .

# Nor without CUDA or Triton: it would find no GPU, and refuse to start.
RUN /opt/sruserve/bin/python -I -c \
    "import sys, torch, sruserve.kernels.cpu.library as cpu, sruserve.kernels.devices as devices; sys.exit(not cpu.available() and 'no compiled kernel' or not torch.version.cuda and 'no CUDA in torch' or devices.missing_triton() or None)"


FROM ${PYTHON_IMAGE} AS runtime

LABEL org.opencontainers.image.title="sruserve" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="The sruserve authors"

# /models is where own models are mounted. SRUSERVE_MODELS stays unset, so that without any the
# bundled ones are served:
#   docker run --volume "$PWD/models:/models:ro" --env SRUSERVE_MODELS=/models sruserve
RUN groupadd --gid 10001 sruserve \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp \
        --shell /usr/sbin/nologin sruserve \
 && mkdir /models

# A line for each request, and all interfaces of the container: what of them is reachable from
# outside, `--publish` decides.
ENV PATH=/opt/sruserve/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SRUSERVE_ACCESS_LOG=true \
    SRUSERVE_HOST=0.0.0.0

# By number, so that an orchestrator can tell that it is not root.
USER 10001:10001
EXPOSE 8000 8001
STOPSIGNAL SIGTERM

# A first start on a GPU compiles the kernels, so it may take its time.
HEALTHCHECK --interval=5s --timeout=3s --start-period=300s --retries=3 \
    CMD ["python", "-I", "-c", "import http.client, os, ssl, sys; address = '127.0.0.1', int(os.environ.get('SRUSERVE_PORT') or 8000); probe = http.client.HTTPSConnection(*address, timeout=2, context=ssl._create_unverified_context()) if os.environ.get('SRUSERVE_TLS_CERT') else http.client.HTTPConnection(*address, timeout=2); probe.request('GET', '/readyz'); sys.exit(probe.getresponse().status != 200)"]

ENTRYPOINT ["sruserve"]
CMD ["serve"]


FROM runtime AS gpu

LABEL org.opencontainers.image.description="Inference server for SRU recurrent models, on a GPU"

# Triton compiles the kernels with its own assembler, but what loads and launches them with a C
# compiler, when the server first runs; no nvcc. The folder keeps both kinds for the next start.
USER 0:0
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/* \
 && install --directory --owner 10001 --group 10001 /var/cache/sruserve

COPY --from=gpu-environment /opt/sruserve /opt/sruserve

# `cuda`, not `auto`: a container that was given no GPU says so instead of being slow.
ENV TRITON_CACHE_DIR=/var/cache/sruserve \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    SRUSERVE_DEVICE=cuda

USER 10001:10001


FROM runtime AS cpu

LABEL org.opencontainers.image.description="Inference server for SRU recurrent models, on the CPU"

COPY --from=cpu-environment /opt/sruserve /opt/sruserve
