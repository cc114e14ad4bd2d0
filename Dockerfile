# The server in a container.
#
#   docker build --target cpu --tag sruserve .
#   docker run --rm --publish 127.0.0.1:8000:8000 sruserve
#
# The first stage has a C compiler and fills a virtual environment; the second only runs it.

# Both stages must use one image: the environment links to its Python and its C library.
ARG PYTHON_IMAGE=python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS builder

# The package index that PyTorch alone is taken from, to get its CPU build where pip's own index
# has the CUDA one. Empty: pip's own. docs/deployment.md says which address to give.
ARG TORCH_INDEX=""

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/* \
 && python -m venv --without-pip /opt/sruserve

WORKDIR /src

# PyTorch is most of the download. Alone in its layer, it stays when the code changes.
COPY constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/sruserve/bin/python install \
        ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} --no-deps --constraint constraints.txt torch

COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip wheel --no-deps --wheel-dir /wheels . \
 && pip --python /opt/sruserve/bin/python install \
        --constraint constraints.txt /wheels/sruserve-*.whl

# Without its compiled kernel the server runs too, many times slower, so such an image must not be.
# -I: the installed package, not the one in this folder.
RUN /opt/sruserve/bin/python -I -c \
    "import sys, sruserve.kernels.cpu as cpu; sys.exit(not cpu.available() and 'no compiled kernel')"


FROM ${PYTHON_IMAGE} AS cpu

LABEL org.opencontainers.image.title="sruserve" \
      org.opencontainers.image.description="Inference server for SRU recurrent models, on the CPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="The sruserve authors"

# /models is where own models are mounted. SRUSERVE_MODELS stays unset, so that without any the
# bundled ones are served:
#   docker run --volume "$PWD/models:/models:ro" --env SRUSERVE_MODELS=/models sruserve
RUN groupadd --gid 10001 sruserve \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp \
        --shell /usr/sbin/nologin sruserve \
 && mkdir /models

COPY --from=builder /opt/sruserve /opt/sruserve

# All interfaces of the container; what of them is reachable from outside, `--publish` decides.
ENV PATH=/opt/sruserve/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SRUSERVE_HOST=0.0.0.0

# By number, so that an orchestrator can tell that it is not root.
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM

HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-I", "-c", "import http.client, os, sys; probe = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('SRUSERVE_PORT') or 8000), timeout=2); probe.request('GET', '/readyz'); sys.exit(probe.getresponse().status != 200)"]

ENTRYPOINT ["sruserve"]
CMD ["serve"]
