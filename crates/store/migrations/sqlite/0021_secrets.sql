-- Secrets of the servers in the configuration file, encrypted.
CREATE TABLE kb.toolwharf_secrets (
    name TEXT NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    nonce BLOB NOT NULL,
    sealed BLOB NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT;
