# One image for all daemons and commands. scripts/image builds it; docs/how-to/build-an-image.md says how to use it.

# Any Debian-like image with Python 3.11 or newer as `python3`, and its venv module.
ARG BASE=docker.io/library/python:3.13-slim-bookworm

FROM ${BASE} AS builder
ARG UV_VERSION=0.13.8
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN python3 -m venv tools && python3 -m venv /opt/nonet
# The secrets configure another package index than the public one.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.pem \
    tools/bin/pip install "uv==${UV_VERSION}" "hatchling>=1.27"
COPY pyproject.toml uv.lock ./
# Install wheels with the versions and hashes of the lock file. Nothing is compiled.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.pem \
    tools/bin/uv export --frozen --no-dev --no-emit-project --no-header --no-annotate \
        --all-extras --no-extra django --no-extra embedded --no-extra fastapi --output-file requirements.txt >/dev/null \
    && /opt/nonet/bin/pip install --require-hashes --only-binary :all: -r requirements.txt
COPY README.md LICENSE ./
COPY src src
RUN tools/bin/pip wheel --no-index --no-deps --no-build-isolation --wheel-dir dist . \
    && /opt/nonet/bin/pip install --no-deps --no-index dist/*.whl \
    && /opt/nonet/bin/pip uninstall --yes setuptools
# Task packages go to /opt/tasks, and cannot replace the locked dependencies of Nonet.
RUN sed -n 's/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' requirements.txt >/opt/nonet/constraints.txt \
    && /opt/nonet/bin/python -c \
        'import sysconfig as s; print(s.get_path("purelib", vars={"base": "/opt/tasks"}))' \
        >"$(/opt/nonet/bin/python -c 'import sysconfig as s; print(s.get_path("purelib"))')/tasks.pth"

FROM ${BASE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="nonet" \
      org.opencontainers.image.description="Async-first task system on Redis Streams" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# As process 1, tini forwards signals and reaps the orphans of programs that tasks start.
RUN command -v tini \
    || (apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*)
# The user owns /opt/tasks, so that derived images can `RUN pip install` without root. Everyone can write
# to the state directory, because a cluster may run the container as any user.
RUN groupadd --gid 10001 nonet \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /var/lib/nonet \
        --shell /usr/sbin/nologin nonet \
    && install -d -m 1777 /var/lib/nonet \
    && install -d -o 10001 -g 10001 /opt/tasks
COPY --from=builder /opt/nonet /opt/nonet
ENV PATH=/opt/nonet/bin:/opt/tasks/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/var/lib/nonet \
    NONET_STATE_DIR=/var/lib/nonet \
    NONET_METRICS_PORT=9100 \
    PIP_PREFIX=/opt/tasks \
    PIP_CONSTRAINT=/opt/nonet/constraints.txt \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /var/lib/nonet
USER 10001:10001
EXPOSE 9100
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=20s --timeout=5s --start-period=30s --retries=3 \
    CMD ["task-run", "probe", "livez"]
ENTRYPOINT ["tini", "--"]
CMD ["task-run", "--help"]
