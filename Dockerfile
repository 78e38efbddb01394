# syntax=docker/dockerfile:1
# One image for every service: crawlctl worker | gateway | scheduler | db upgrade. `make image` builds it.
#
# The tag names a version. For a release pin what it stands for: --build-arg PYTHON_IMAGE=python@sha256:<digest>.
# What ships may stand on less than what builds: RUNTIME_IMAGE needs the same Python in the same place, and no pip.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
ARG RUNTIME_IMAGE=${PYTHON_IMAGE}

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN ["python", "-m", "venv", "--without-pip", "/opt/crawler-lifecycle"]
# Wheels with known hashes and nothing else: no package's own build code runs here. Their commands are not for us.
COPY locks/image.lock ./
RUN python -m pip --python /opt/crawler-lifecycle/bin/python install --no-compile --require-hashes \
      --only-binary :all: -r image.lock \
 && find /opt/crawler-lifecycle/bin -type f -delete
# 70 MB that no process here opens: Temporal's Rust sources, descriptions of AWS services that are not called, and the
# text of what is generated for Kubernetes (compiled it stays, and a traceback still names its lines).
RUN site=$(echo /opt/crawler-lifecycle/lib/python3*/site-packages) \
 && rm -r "$site/temporalio/bridge/sdk-core" "$site/temporalio/bridge/src" \
 && find "$site/botocore/data" -mindepth 1 -maxdepth 1 -type d \
      ! -name events ! -name s3 ! -name signin ! -name sso ! -name sso-oidc ! -name sts -exec rm -r {} + \
 && PYTHONHASHSEED=0 python -m compileall -q -j 0 -b --invalidation-mode unchecked-hash "$site/kubernetes" \
 && find "$site/kubernetes" -name '*.py' -delete
# The wheel that was tested is the wheel that is shipped (`make wheel`). The same sources give the same bytes: nothing
# that is compiled holds a time, an order of a set that chance chose, or what another file left in memory.
COPY dist/*.whl ./
RUN python -m pip --python /opt/crawler-lifecycle/bin/python install --no-compile --no-index --no-deps ./*.whl \
 && PYTHONHASHSEED=0 python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/crawler-lifecycle/lib \
 && install -d -o 65532 -g 65532 -m 0750 /state

FROM ${RUNTIME_IMAGE}
ARG VERSION=0.0.0+unknown
ARG BUILD_ID=unversioned
ARG REVISION=unknown
LABEL org.opencontainers.image.title="crawler-lifecycle" \
      org.opencontainers.image.description="Takes a crawl from request to archive on Temporal" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/crawler-lifecycle /opt/crawler-lifecycle
# The only place that is written to; mount a volume here when the root file system is read-only.
COPY --from=build --chown=65532:65532 /state /var/lib/crawler-lifecycle
ENV PATH=/opt/crawler-lifecycle/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/crawler-lifecycle \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONFAULTHANDLER=1 \
    PYTHONUNBUFFERED=1 \
    TEMPORAL_WORKER_BUILD_ID=${BUILD_ID} \
    LIFECYCLE_LOG__FORMAT=json \
    LIFECYCLE_WORKER__HEALTH_HOST=0.0.0.0 \
    LIFECYCLE_WORKER__METRICS_HOST=0.0.0.0 \
    LIFECYCLE_WORKER__METRICS_PORT=9464
WORKDIR /var/lib/crawler-lifecycle
USER 65532:65532
EXPOSE 8500 8600 8700 9464
# The process is its own init: it handles SIGTERM itself and needs neither a shell nor tini.
STOPSIGNAL SIGTERM
ENTRYPOINT ["crawlctl"]
CMD ["--help"]
