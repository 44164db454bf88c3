-- Servers whose arguments and results are recorded until `ends_at`, regardless of the settings. `project_id` is empty for servers without a
-- project.
CREATE TABLE kb.toolwharf_recordings (
    project_id TEXT COLLATE "C" NOT NULL,
    server TEXT COLLATE "C" NOT NULL,
    ends_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (project_id, server)
);

CREATE TRIGGER toolwharf_changed AFTER INSERT OR DELETE OR UPDATE ON kb.toolwharf_recordings
    FOR EACH STATEMENT EXECUTE FUNCTION kb.toolwharf_changed('recordings');
