# syntax=docker/dockerfile:1
#
#   docker build --build-arg VERSION=0.1.0 --build-arg REVISION="$(git rev-parse HEAD)" --tag switchboard .
#
# With `--target anchor --tag switchboard-anchor` it is the image for sidecars: the anchor and the client alone.

# The toolchain that Cargo.toml asks for, on the Debian whose C library the final image has. The image brings gcc, which
# is all that aws-lc-rs needs on amd64 and arm64. The digests of the images could not be looked up where this was written.
FROM rust:1.95-bookworm AS source
WORKDIR /switchboard
COPY . .

FROM source AS build
# The caches outlive a build; the binary must not stay in one.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/switchboard/target \
    cargo build --release --locked --bin switchboard \
    && install -D target/release/switchboard /out/switchboard

FROM source AS build-anchor
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends musl-tools \
    && rm -rf /var/lib/apt/lists/* \
    && rustup target add "$(uname -m)-unknown-linux-musl"
# As in packaging/cross.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/switchboard/target \
    cargo build --locked --profile client --bin switchboard --no-default-features --features anchor \
        --target "$(uname -m)-unknown-linux-musl" \
    && install -D "target/$(uname -m)-unknown-linux-musl/client/switchboard" /out/switchboard

# The anchor has two threads at most, for which musl's allocator will do, and has 5 MiB resident instead of 14 in the image below. The program is static, so that other images can copy it, whatever their C library is.
FROM gcr.io/distroless/static-debian12:nonroot AS anchor
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="switchboard-anchor" \
      org.opencontainers.image.description="Keeps SSH sessions beside an SSH server, beyond their connections" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY LICENSE THIRD-PARTY-LICENCE[S] /usr/share/licenses/switchboard/
COPY --from=build-anchor /out/switchboard /usr/local/bin/switchboard
USER 65532:65532
EXPOSE 2222
ENTRYPOINT ["/usr/local/bin/switchboard"]
CMD ["anchor"]

# The last stage is what is built by default: the proxy, and all else.
#
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
# The second one is there in a release, which takes it from `make dist`.
COPY LICENSE THIRD-PARTY-LICENCE[S] /usr/share/licenses/switchboard/
COPY --from=build /out/switchboard /usr/local/bin/switchboard
# The image's own "nonroot", as a number: Kubernetes can prove runAsNonRoot only of numbers.
USER 65532:65532
# Public port, admin port.
EXPOSE 8080 9090
# No HEALTHCHECK: Kubernetes asks /livez and /readyz on the admin port.
ENTRYPOINT ["/usr/local/bin/switchboard"]
CMD ["serve"]
