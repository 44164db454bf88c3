-- Servers whose arguments and results are recorded until `ends_at`, regardless of the settings. `project_id` is empty for servers without a
-- project.
CREATE TABLE kb.toolwharf_recordings (
    project_id TEXT NOT NULL,
    server TEXT NOT NULL,
    ends_at TEXT NOT NULL,
    PRIMARY KEY (project_id, server)
) STRICT;
