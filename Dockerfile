# One image for every role; what a container does stands in its command. `scripts/release` reads this file and makes the same
# image without an engine.

# What builds, agent servers and backups call. Debian 13 has the PostgreSQL client of the server in docker-compose.yml;
# pg_dump refuses a server newer than itself.
FROM debian:trixie-slim AS runtime
# For builds that need more, such as `nodejs npm` for projects with a package.json: 40 MB of packages more.
ARG EXTRA_PACKAGES=""
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates git openssh-client postgresql-client-17 python3 python3-venv tini ${EXTRA_PACKAGES} \
    && rm -rf /var/lib/apt/lists/* \
    # uv makes environments of graphs several times as fast as pip.
    && python3 -m venv /tmp/uv && /tmp/uv/bin/pip install --no-cache-dir uv==0.13.9 \
    && mv /tmp/uv/bin/uv /usr/local/bin/uv && rm -rf /tmp/uv \
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
# For the command below; services of other roles listen elsewhere and have checks of their own.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8400; printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3; IFS= read -r line <&3; [[ $line == *' 200 '* ]]"]
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
