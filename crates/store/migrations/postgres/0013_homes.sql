-- The oldest version that a program may be of to work with a database that has this migration. Two neighbouring versions run on one
-- database while gateways are upgraded one after the other.
ALTER TABLE kb.schema_migrations ADD COLUMN needs BIGINT;

-- Where the volumes of a registered server are that cannot follow it: the id of a data directory, and the name of its host.
CREATE TABLE kb.toolwharf_homes (
    server TEXT COLLATE "C" NOT NULL PRIMARY KEY REFERENCES kb.agent_workspaces (id) ON DELETE CASCADE,
    installation TEXT COLLATE "C" NOT NULL,
    host TEXT NOT NULL
);

-- A definition that was agreed to, on whichever replica.
CREATE TRIGGER toolwharf_changed AFTER INSERT ON kb.tool_changes
    FOR EACH STATEMENT EXECUTE FUNCTION kb.toolwharf_changed('approvals');

-- Somebody signed in, or out, or has to again. What is renewed is looked up by whoever finds it due.
CREATE TRIGGER toolwharf_changed AFTER INSERT OR DELETE ON kb.logins
    FOR EACH ROW EXECUTE FUNCTION kb.toolwharf_changed('logins');
CREATE TRIGGER toolwharf_needed AFTER UPDATE ON kb.logins
    FOR EACH ROW WHEN (OLD.needs_login IS DISTINCT FROM NEW.needs_login) EXECUTE FUNCTION kb.toolwharf_changed('logins');
