-- The gateways that run on this database: none but on Postgres.
CREATE TABLE kb.toolwharf_replicas (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    version TEXT NOT NULL,
    address TEXT,
    started_at TEXT NOT NULL,
    seen_at TEXT NOT NULL,
    expires_at TEXT NOT NULL
) STRICT;

CREATE TABLE kb.toolwharf_leases (
    name TEXT NOT NULL PRIMARY KEY,
    holder TEXT NOT NULL REFERENCES toolwharf_replicas (id) ON DELETE CASCADE,
    fence INTEGER NOT NULL,
    since TEXT NOT NULL
) STRICT;

CREATE TABLE kb.toolwharf_changes (
    id INTEGER NOT NULL PRIMARY KEY,
    topic TEXT NOT NULL,
    at TEXT NOT NULL
) STRICT;
