-- A key that is not an administrator's may be for all projects.
CREATE TABLE kb.api_keys_new (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT REFERENCES projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('admin', 'manage', 'call', 'read')),
    hash TEXT NOT NULL UNIQUE,
    hint TEXT NOT NULL,
    created_at TEXT NOT NULL,
    last_used_at TEXT,
    expires_at TEXT,
    revoked_at TEXT,
    CHECK (role <> 'admin' OR project_id IS NULL)
) STRICT;

INSERT INTO kb.api_keys_new SELECT * FROM kb.api_keys;

DROP TABLE kb.api_keys;

ALTER TABLE kb.api_keys_new RENAME TO api_keys;

CREATE INDEX kb.api_keys_by_project ON api_keys (project_id, id);
