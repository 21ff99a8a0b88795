# strobe on NVIDIA GPUs: docker build -f docker/cuda.Dockerfile -t strobe:cuda .
# The wheels of torch bring the CUDA libraries; the image adds the C compiler that Triton needs.
FROM python:3.11-slim-bookworm AS build
COPY --from=ghcr.io/astral-sh/uv:0.9.30 /uv /usr/local/bin/uv
WORKDIR /build
ENV UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 VIRTUAL_ENV=/app
RUN python -m venv --without-pip /app
COPY requirements/torch.lock requirements/serve.lock requirements/
RUN uv pip install --no-cache --require-hashes --no-deps -r requirements/torch.lock -r requirements/serve.lock
# Its own dependencies are the CUDA libraries of this build and Triton, which no lock of ours names.
RUN uv pip install --no-cache --torch-backend=cu130 torch==2.13.0
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN uv pip install --no-cache --no-deps .

FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --home-dir /data --uid 10001 strobe
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH PYTHONUNBUFFERED=1 HF_HOME=/data/huggingface XDG_DATA_HOME=/data/share XDG_CACHE_HOME=/data/cache \
    TRITON_CACHE_DIR=/data/cache/triton NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER strobe
WORKDIR /data
VOLUME /data
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=300s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:7860/readyz', timeout=4)"]
ENTRYPOINT ["strobe"]
CMD ["serve", "--host", "0.0.0.0", "--port", "7860", "--insecure-http"]
