CREATE TABLE kb.conversations (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT REFERENCES projects (id) ON DELETE CASCADE,
    title TEXT NOT NULL,
    body TEXT NOT NULL,
    revision INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT;

CREATE INDEX kb.conversations_by_project ON conversations (project_id, id);
