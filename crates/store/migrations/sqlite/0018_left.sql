-- The state in which a hosted server is for the next start of the gateway: `ready`, `stopped` (by hand), `exited` or
-- `failed`. Its `status` in `agent_workspaces` is the current one, which is `stopped` while the gateway does not run.
-- A row counts only while `status` is the same in both tables: versions before this table write only the other one.
CREATE TABLE kb.toolwharf_left (
    server TEXT NOT NULL PRIMARY KEY REFERENCES agent_workspaces (id) ON DELETE CASCADE,
    status TEXT NOT NULL,
    state TEXT NOT NULL
) STRICT;
