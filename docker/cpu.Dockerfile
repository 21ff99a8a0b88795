# strobe on a CPU: docker build -f docker/cpu.Dockerfile -t strobe:cpu .
FROM python:3.11-slim-bookworm AS build
COPY --from=ghcr.io/astral-sh/uv:0.9.30 /uv /usr/local/bin/uv
WORKDIR /build
ENV UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 VIRTUAL_ENV=/app
RUN python -m venv --without-pip /app
# The layers that change least come first: torch, then what is locked with hashes, then the package.
COPY requirements/torch.lock requirements/serve.lock requirements/
RUN uv pip install --no-cache --require-hashes --no-deps -r requirements/torch.lock -r requirements/serve.lock
RUN uv pip install --no-cache --no-deps --torch-backend=cpu torch==2.13.0
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN uv pip install --no-cache --no-deps .

FROM python:3.11-slim-bookworm
RUN useradd --create-home --home-dir /data --uid 10001 strobe
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH PYTHONUNBUFFERED=1 HF_HOME=/data/huggingface XDG_DATA_HOME=/data/share XDG_CACHE_HOME=/data/cache
USER strobe
WORKDIR /data
VOLUME /data
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:7860/readyz', timeout=4)"]
ENTRYPOINT ["strobe"]
CMD ["serve", "--host", "0.0.0.0", "--port", "7860", "--insecure-http"]
