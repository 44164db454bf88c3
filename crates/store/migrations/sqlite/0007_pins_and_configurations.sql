-- Empty: pinned by an earlier version, and under which configuration is not known.
ALTER TABLE kb.tool_pins ADD COLUMN config_digest TEXT NOT NULL DEFAULT '';

CREATE TABLE kb.tool_changes (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL,
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    cause TEXT NOT NULL CHECK (cause IN ('approved', 'configuration')),
    old_definition TEXT NOT NULL,
    new_definition TEXT NOT NULL,
    at TEXT NOT NULL
) STRICT;

CREATE INDEX kb.tool_changes_by_server ON tool_changes (project_id, server, id);
