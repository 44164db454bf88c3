-- Long results of tool calls, which their callers can read until `expires_at`. `project_id` is empty for callers outside of a
-- project. `structured` is NULL if it says the same as the text.
CREATE TABLE kb.toolwharf_results (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    project_id TEXT COLLATE "C" NOT NULL,
    caller TEXT COLLATE "C" NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    bytes BIGINT NOT NULL,
    text BYTEA NOT NULL,
    structured BYTEA
);

CREATE INDEX toolwharf_results_by_caller ON kb.toolwharf_results (project_id, caller, created_at, bytes);

CREATE INDEX toolwharf_results_by_end ON kb.toolwharf_results (expires_at);
