-- The journals of tool calls, in the folder next to this file. Their records up to `position`, in bytes, are in
-- agent_run_tool_calls. `hash`: that of the last of these records. `ended`: nothing is appended any more.
CREATE TABLE kb.toolwharf_journals (
    file TEXT NOT NULL PRIMARY KEY,
    position INTEGER NOT NULL,
    hash TEXT NOT NULL,
    ended INTEGER NOT NULL
) STRICT;
