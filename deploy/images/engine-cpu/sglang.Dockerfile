# SGLang on CPU, installed as in the local stack; for trying out and for tests.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV XDG_CACHE_HOME=/opt HINTLOOP_PYTHON=python
WORKDIR /opt/engines
COPY engines .
# Where pip offers torch for CUDA, give it the CPU builds; the script refuses the others.
ARG TORCH_INDEX=""
RUN PIP_EXTRA_INDEX_URL="${TORCH_INDEX}" PIP_NO_CACHE_DIR=1 sglang/install.sh

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="hintloop/engine-cpu-sglang" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update && \
    apt-get install -y --no-install-recommends g++=4:12.* libgomp1=12.* libnuma1=2.0.* libsndfile1=1.2.* && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/hintloop /opt/hintloop
COPY engines /opt/engines
ENV XDG_CACHE_HOME=/opt HINTLOOP_DEVICE=cpu
USER 10001:10001
EXPOSE 30000
ENTRYPOINT ["bash", "/opt/engines/sglang/start.sh"]
