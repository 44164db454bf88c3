-- Empty: pinned by an earlier version, and under which configuration is not known.
ALTER TABLE kb.tool_pins ADD COLUMN config_digest TEXT COLLATE "C" NOT NULL DEFAULT '';

CREATE TABLE kb.tool_changes (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    project_id TEXT COLLATE "C" NOT NULL,
    server TEXT COLLATE "C" NOT NULL,
    tool TEXT COLLATE "C" NOT NULL,
    cause TEXT COLLATE "C" NOT NULL CHECK (cause IN ('approved', 'configuration')),
    old_definition TEXT NOT NULL,
    new_definition TEXT NOT NULL,
    at TIMESTAMPTZ NOT NULL
);

CREATE INDEX tool_changes_by_server ON kb.tool_changes (project_id, server, id);
