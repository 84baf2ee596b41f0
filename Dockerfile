# syntax=docker/dockerfile:1
#
#   docker build --build-arg VERSION=0.1.0 --build-arg REVISION="$(git rev-parse HEAD)" --tag switchboard .

# The toolchain that Cargo.toml asks for, on the Debian whose C library the final image has. The image brings gcc, which
# is all that aws-lc-rs needs on amd64 and arm64.
FROM rust:1.95-bookworm AS build
WORKDIR /switchboard
COPY . .
# The caches outlive a build; the binary must not stay in one.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/switchboard/target \
    cargo build --release --locked --bin switchboard \
    && install -D target/release/switchboard /out/switchboard

# C library, libgcc (a panicking tunnel unwinds) and the certificates of public authorities: no shell, no package manager,
# and not root. `scratch` would need a musl build, whose allocator is slow with many threads.
FROM gcr.io/distroless/cc-debian12:nonroot
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="switchboard" \
      org.opencontainers.image.description="An SSH ingress for Kubernetes: a standalone HTTP CONNECT tunnelling proxy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/switchboard /usr/local/bin/switchboard
# The image's own "nonroot", as a number: Kubernetes can prove runAsNonRoot only of numbers.
USER 65532:65532
# Public port, admin port.
EXPOSE 8080 9090
# No HEALTHCHECK: Kubernetes asks /livez and /readyz on the admin port.
ENTRYPOINT ["/usr/local/bin/switchboard"]
CMD ["serve"]
