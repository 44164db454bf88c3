-- Which project was changed has a topic of its own, so that other gateways read this project anew and no other. Earlier versions do not know
-- it: the triggers for `projects` stay until no version reads that topic.
CREATE FUNCTION kb.toolwharf_project_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed TEXT;
BEGIN
    IF TG_TABLE_NAME = 'projects' THEN
        IF TG_OP = 'DELETE' THEN
            changed := 'projects/' || OLD.id;
        ELSE
            changed := 'projects/' || NEW.id;
        END IF;
    ELSIF TG_OP = 'DELETE' THEN
        changed := 'projects/' || OLD.project_id;
    ELSE
        changed := 'projects/' || NEW.project_id;
    END IF;
    INSERT INTO kb.toolwharf_changes (topic, at) VALUES (changed, clock_timestamp());
    PERFORM pg_notify('toolwharf_changes', changed);
    RETURN NULL;
END
$$;

CREATE TRIGGER toolwharf_project_changed AFTER INSERT OR DELETE OR UPDATE OF name, description, enabled, settings ON kb.projects
    FOR EACH ROW EXECUTE FUNCTION kb.toolwharf_project_changed();
CREATE TRIGGER toolwharf_project_changed AFTER INSERT OR DELETE OR UPDATE ON kb.project_mcp_servers
    FOR EACH ROW EXECUTE FUNCTION kb.toolwharf_project_changed();
CREATE TRIGGER toolwharf_project_changed AFTER INSERT OR DELETE OR UPDATE ON kb.secrets
    FOR EACH ROW EXECUTE FUNCTION kb.toolwharf_project_changed();
CREATE TRIGGER toolwharf_project_changed AFTER INSERT OR DELETE OR UPDATE ON kb.tool_settings
    FOR EACH ROW EXECUTE FUNCTION kb.toolwharf_project_changed();
