# Toolwharf on the C library and the certificates of Debian, without a shell: for clusters and for remote servers.
# `cargo xtask dist` makes `root.tar` and builds this.
FROM scratch
ADD root.tar /
ARG VERSION
ARG REVISION
ARG CREATED
LABEL org.opencontainers.image.title="toolwharf" \
    org.opencontainers.image.description="One endpoint for many MCP servers." \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.created="${CREATED}"
# The configuration is in /etc/toolwharf, the data in /var/lib/toolwharf.
ENV PATH=/usr/bin HOME=/var/lib/toolwharf XDG_CONFIG_HOME=/etc XDG_DATA_HOME=/var/lib
USER 65532:65532
WORKDIR /var/lib/toolwharf
VOLUME ["/etc/toolwharf", "/var/lib/toolwharf"]
EXPOSE 6280
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s CMD ["toolwharf", "health"]
ENTRYPOINT ["toolwharf"]
CMD ["serve", "--listen", "0.0.0.0:6280"]
