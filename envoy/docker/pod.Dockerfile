# One simulated vLLM pod: a static program needs no root file system. Context: the root of the
# repository, after `make image`.
FROM scratch
COPY target/docker/sim-vllm /sim-vllm
USER 65532
STOPSIGNAL SIGINT
EXPOSE 8000
ENTRYPOINT ["/sim-vllm"]
