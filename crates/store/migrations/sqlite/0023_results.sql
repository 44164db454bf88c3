-- Long results of tool calls, which their callers can read until `expires_at`. `project_id` is empty for callers outside of a
-- project. `structured` is NULL if it says the same as the text.
CREATE TABLE kb.toolwharf_results (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL,
    caller TEXT NOT NULL,
    created_at TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    text BLOB NOT NULL,
    structured BLOB
) STRICT;

CREATE INDEX kb.toolwharf_results_by_caller ON toolwharf_results (project_id, caller, created_at, bytes);

CREATE INDEX kb.toolwharf_results_by_end ON toolwharf_results (expires_at);
