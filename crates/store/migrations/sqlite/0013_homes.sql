-- The oldest version that a program may be of to work with a database that has this migration.
ALTER TABLE kb.schema_migrations ADD COLUMN needs BIGINT;

-- Where the volumes of a registered server are that cannot follow it: the id of a data directory, and the name of its host.
CREATE TABLE kb.toolwharf_homes (
    server TEXT NOT NULL PRIMARY KEY REFERENCES agent_workspaces (id) ON DELETE CASCADE,
    installation TEXT NOT NULL,
    host TEXT NOT NULL
) STRICT;
