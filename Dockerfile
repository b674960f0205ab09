# docker build -t fairseq-diverse .                                                    (CPU)
# docker build -t fairseq-diverse --build-arg BASE=nvidia/cuda:12.6.3-devel-ubuntu24.04 .   (CUDA)
ARG BASE=python:3.11-slim
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends build-essential git \
    && (command -v python3 && python3 -m venv --help >/dev/null || apt-get install -y --no-install-recommends python3-dev python3-venv) \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /fairseq_diverse
COPY . .
RUN make setup
ENV PATH=/fairseq_diverse/.venv/bin:$PATH
CMD ["bash"]
