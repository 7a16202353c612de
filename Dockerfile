# Debian's Python in both stages: the first builds an environment from locked, hashed dependencies, the second carries
# only that environment. Each step also runs in a plain Debian root, which is how the tests prove them.
FROM debian:bookworm-slim AS base
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/*

FROM base AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/tools && python3 -m venv --without-pip /opt/ggufd
WORKDIR /source
COPY deploy/locks ./locks
RUN /opt/tools/bin/pip install --no-cache-dir --require-hashes -r locks/build.txt
RUN /opt/tools/bin/pip --python /opt/ggufd/bin/python install --no-cache-dir --require-hashes --only-binary :all: \
    -r locks/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY app ./app
RUN /opt/tools/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/tools/bin/pip --python /opt/ggufd/bin/python install --no-cache-dir --no-deps --no-index /wheels/*.whl

FROM base
RUN groupadd --system --gid 10001 ggufd \
    && useradd --system --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin ggufd
COPY --from=build /opt/ggufd /opt/ggufd
ENV PATH=/opt/ggufd/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    GGUFD_HOST=0.0.0.0 \
    GGUFD_PORT=8090 \
    GGUFD_MODEL_ROOTS=/models
USER 10001:10001
VOLUME /models
EXPOSE 8090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['GGUFD_PORT'] + '/healthz', timeout=2)"]
ENTRYPOINT ["ggufd"]
CMD ["serve"]
