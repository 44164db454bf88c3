-- The oldest version that a program may be of to work with a database that has this migration.
ALTER TABLE kb.schema_migrations ADD COLUMN needs BIGINT;

-- Where the volumes of a server are that cannot follow it: the id of a data directory, and the name of its host. NULL: nowhere yet.
ALTER TABLE kb.agent_workspaces ADD COLUMN home TEXT;
ALTER TABLE kb.agent_workspaces ADD COLUMN home_host TEXT;
