# One image for every role; what a container does stands in its command.

# What builds, agent servers and backups call. Debian 13 has the PostgreSQL client of the server in docker-compose.yml;
# pg_dump refuses a server newer than itself.
FROM debian:trixie-slim AS runtime
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates git nodejs npm openssh-client postgresql-client-17 python3 python3-venv tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /data --create-home towpath \
    # Code of deployments has the platform's user id here. It must not read the environment of the programs that have the
    # platform's secrets: the kernel closes those that their user cannot read.
    && chmod 0711 /usr/bin/tini /bin/bash
USER towpath
WORKDIR /data
ENV TOWPATH_DATA_DIR=/data
VOLUME /data
EXPOSE 8400 8401 8402
# SIGTERM drains: give it longer than the grace time (10 s) before a kill.
STOPSIGNAL SIGTERM
# tini reaps orphans of builds and graph processes, which would stay as zombies; -s: also below another init. Start containers
# without the engine's own init (--init): code of deployments can read its environment.
ENTRYPOINT ["tini", "-s", "--", "towpath"]
CMD ["serve", "--role", "all", "--listen", "0.0.0.0:8400"]

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --profile dist -p towpath \
    && cp target/dist/towpath /usr/local/bin/towpath

FROM runtime
COPY --from=build /usr/local/bin/towpath /usr/local/bin/towpath
