# syntax=docker/dockerfile:1
# One image for every role; what a container does stands in its command.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --profile dist -p towpath \
    && cp target/dist/towpath /usr/local/bin/towpath

FROM debian:bookworm-slim
# Public certificates, for object stores and destinations over TLS.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /data --create-home towpath
COPY --from=build /usr/local/bin/towpath /usr/local/bin/towpath
USER towpath
WORKDIR /data
ENV TOWPATH_DATA_DIR=/data
VOLUME /data
EXPOSE 8400 8401 8402
# SIGTERM drains: give it longer than the grace time (10 s) before a kill.
STOPSIGNAL SIGTERM
ENTRYPOINT ["towpath"]
CMD ["serve", "--role", "all", "--listen", "0.0.0.0:8400"]
