# The service as an image: docker build -t picknet . && docker run -e PICKNET_TOKEN=… -p 127.0.0.1:8000:8000 picknet
# Any other command works, too: docker run -v "$PWD:/videos:ro" picknet caption /videos

FROM python:3.13-slim AS build
WORKDIR /picknet
COPY . .
RUN python -m venv --without-pip /opt/picknet \
    && pip --python /opt/picknet/bin/python install --no-cache-dir --constraint constraints.txt ".[serve]"

FROM python:3.13-slim
COPY --from=build /opt/picknet /opt/picknet
# Compiled graphs and uploads are in /tmp, the only place that is written to.
ENV PATH=/opt/picknet/bin:$PATH \
    PICKNET_CACHE=/tmp/picknet-cache \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --start-period=30s --interval=30s --timeout=5s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["picknet"]
# Without PICKNET_TOKEN it refuses to start: the address is open to other machines.
CMD ["serve", "--host", "0.0.0.0"]
