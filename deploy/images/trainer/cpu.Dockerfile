# The trainer without a GPU: megatron-core on gloo, for trying out and for tests; and the `hintloop` command.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY constraints/services.txt constraints/services.txt
COPY deploy/images/install.sh install.sh
COPY contract contract
COPY services/judge services/judge
COPY services/rollout-proxy services/rollout-proxy
COPY services/teacher services/teacher
COPY services/trainer services/trainer
COPY cli cli
# Where pip offers torch for CUDA, give it the CPU builds: gigabytes less.
ARG TORCH_INDEX=""
RUN PIP_EXTRA_INDEX_URL="${TORCH_INDEX}" \
    ./install.sh contract services/judge services/rollout-proxy services/teacher services/trainer cli

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="hintloop/trainer-cpu" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN install -d -o 10001 -g 10001 /weights /var/lib/hintloop/trainer
COPY --from=build /opt/hintloop /opt/hintloop
ENV PATH=/opt/hintloop/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OMP_WAIT_POLICY=passive
USER 10001:10001
WORKDIR /var/lib/hintloop/trainer
EXPOSE 18030
ENTRYPOINT ["python", "-m", "hintloop_trainer"]
