# Build the wheel and its dependencies in one stage, carry only the finished environment into the other.
FROM python:3.12-slim AS build
WORKDIR /source
RUN python -m venv /opt/ggufd
COPY pyproject.toml README.md LICENSE ./
COPY app ./app
RUN /opt/ggufd/bin/pip install --no-cache-dir --no-compile .

FROM python:3.12-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin ggufd
COPY --from=build /opt/ggufd /opt/ggufd
ENV PATH=/opt/ggufd/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    GGUFD_HOST=0.0.0.0 \
    GGUFD_PORT=8090 \
    GGUFD_MODEL_ROOTS=/models
USER 10001
VOLUME /models
EXPOSE 8090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['GGUFD_PORT'] + '/healthz', timeout=2)"]
ENTRYPOINT ["ggufd"]
CMD ["serve"]
