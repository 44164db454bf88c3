-- The issuer that a client id of an entry without `issuer` belongs to: the first one that its server named.
CREATE TABLE kb.login_issuers (
    -- Empty: the server is one of the configuration file.
    project_id TEXT NOT NULL,
    server TEXT NOT NULL,
    -- Digest of the client id and of the server's address.
    client TEXT NOT NULL,
    issuer TEXT NOT NULL,
    bound_at TEXT NOT NULL,
    PRIMARY KEY (project_id, server, client)
) STRICT;

-- Schema version that the replica's program knows. NULL: 16 or less.
ALTER TABLE kb.toolwharf_replicas ADD COLUMN knows INTEGER;
