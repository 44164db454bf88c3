//! P01 to P03: the table of servers, how it is filled, and the process of a row.

use std::time::Duration;

use serde_json::json;

use crate::{
    api::{Api, problem},
    common::{
        checks, gone,
        real::{everything_at, python, said},
        scripted, tools,
    },
    support::{Db, both, legacy, pid, up},
};

on_both!(
    p01_a_projects_servers_are_rows,
    p02_a_manifest_installs_updates_and_removes_rows,
    p03_stdio_is_a_child_of_command_args_and_env,
);

async fn p01_a_projects_servers_are_rows(db: &Db) {
    let gateway = db.setup().serve().await;
    let (columns, kind) = match db {
        Db::Sqlite => (
            "SELECT name FROM pragma_table_xinfo('project_mcp_servers') ORDER BY cid",
            "SELECT CASE WHEN sql LIKE '%json_valid(config)%' THEN 'json' END FROM kb.sqlite_master
             WHERE name = 'project_mcp_servers'",
        ),
        Db::Postgres(_) => (
            "SELECT column_name::text FROM information_schema.columns
             WHERE table_schema = 'kb' AND table_name = 'project_mcp_servers' ORDER BY ordinal_position",
            "SELECT data_type::text FROM information_schema.columns WHERE table_schema = 'kb'
             AND table_name = 'project_mcp_servers' AND column_name = 'config'",
        ),
    };
    let columns = db.texts(&gateway, columns).await;
    let expected =
        "id project_id product_id name description transport config enabled created_at updated_at";
    assert_eq!(columns.join(" "), expected);
    let kind = db.texts(&gateway, kind).await;
    assert_eq!(kind, [if db.is_sqlite() { "json" } else { "jsonb" }]);

    let api = Api::admin(&gateway);
    api.project("a").await;
    let stdio = json!({
        "command": "run", "args": ["-v", "${A}"], "env": {"B": "${B}"}, "description": "the first",
        "enabled": false,
    });
    let remote = json!({"url": "https://x.example.com", "headers": {"K": "${K}"}});
    for (name, kind, mut entry) in [
        ("one", "stdio", stdio),
        ("two", "sse", remote.clone()),
        ("three", "http", remote),
    ] {
        entry["type"] = kind.into();
        api.server("a", name, entry).await;
    }
    let rows = "SELECT name || ' ' || project_id || ' ' || transport || ' ' || description || ' '
                || CASE WHEN enabled THEN 'on' ELSE 'off' END || CASE WHEN product_id IS NULL THEN '' ELSE '!' END
                FROM kb.project_mcp_servers ORDER BY created_at";
    let expected = [
        "one a stdio the first off",
        "two a sse  on",
        "three a http  on",
    ];
    assert_eq!(db.texts(&gateway, rows).await, expected);
    // The configuration can be queried with SQL. Variables are stored unresolved.
    let asked =
        "SELECT (config->>'command') || ' ' || (config->'args'->>1) || ' ' || (config->'env'->>'B')
                 FROM kb.project_mcp_servers WHERE name = 'one'";
    assert_eq!(db.texts(&gateway, asked).await, ["run ${A} ${B}"]);
    let asked = "SELECT (config->>'url') || ' ' || (config->'headers'->>'K')
                 FROM kb.project_mcp_servers WHERE name = 'two'";
    let found = db.texts(&gateway, asked).await;
    assert_eq!(found, ["https://x.example.com ${K}"]);
}

async fn p02_a_manifest_installs_updates_and_removes_rows(db: &Db) {
    let (_everything, url) = everything_at("sse", "/sse").await;
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    for project in ["a", "b"] {
        api.project(project).await;
    }
    let time = python("mcp-server-time", &["--local-timezone", "Europe/Paris"]);
    let yaml = format!(
        "name: clock\nversion: '1'\nmcp:\n  servers:\n    - name: time\n      transport: stdio\n      config: \
         {time}\n    - name: everything\n      transport: sse\n      config: {{url: '{url}'}}\n",
    );
    let path = "/api/v1/projects/a/products/clock";
    let kind = [("content-type", "application/yaml")];
    let made = api.ask("PUT", path, yaml.clone(), &kind).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let rows = async || {
        let rows =
            "SELECT s.project_id || ' ' || p.name || ' ' || p.version || ' ' || s.name || ' '
                    || s.transport || ' ' || s.id FROM kb.project_mcp_servers AS s
                    JOIN kb.products AS p ON p.id = s.product_id AND p.project_id = s.project_id
                    ORDER BY s.name";
        let rows = db.texts(&gateway, rows).await;
        let rows = rows.iter().map(|row| row.rsplit_once(' ').unwrap());
        let rows = rows.map(|(row, id)| (row.to_owned(), id.to_owned()));
        rows.unzip::<_, _, Vec<_>, Vec<_>>()
    };
    let (first, ids) = rows().await;
    assert_eq!(first, ["a clock 1 everything sse", "a clock 1 time stdio"]);
    for server in ["time", "everything"] {
        up(&api, "a", server).await;
    }
    let mut peer = legacy(&gateway, "a").await;
    let convert = json!({
        "source_timezone": "Europe/Paris", "time": "12:00", "target_timezone": "Asia/Tokyo",
    });
    let converted = peer.tool("convert_time", convert.clone()).await;
    checks::contains(said(converted.result()), &["Asia/Tokyo"]);
    let echo = peer.tool("echo", json!({"message": "x"})).await;
    assert_eq!(said(echo.result()), "Echo: x");
    let server = "/mcp/servers/time?project=a";
    let process = api.get(server).await["pid"].as_u64().unwrap();

    // The same manifest again changes nothing, not even the process.
    let again = api.ask("PUT", path, yaml, &kind).await;
    assert_eq!(again.status, 200, "{}", again.text());
    assert_eq!(rows().await, (first, ids.clone()));
    assert_eq!(api.get(server).await["pid"], process);

    // An invalid manifest changes nothing either.
    let servers = json!({"servers": {"time": {"args": []}}});
    let wrong = json!({"name": "clock", "version": "2", "mcp": servers});
    let refused = api.ask("PUT", path, wrong.to_string(), &[]).await;
    problem(&refused, 422);
    assert_eq!(rows().await.1, ids);

    // An update: one server is removed, one added, one changed. An unchanged server keeps its row.
    let mut other = time;
    other["env"] = json!({"NEW": "yes"});
    let next = json!({"name": "clock", "version": "2", "mcp": {"servers": {
        "time": other, "added": scripted("added", &[]),
    }}});
    let updated = api.put("/projects/a/products/clock", next).await;
    assert_eq!(updated["removed"], json!(["everything"]));
    let (second, new_ids) = rows().await;
    assert_eq!(second, ["a clock 2 added stdio", "a clock 2 time stdio"]);
    assert_eq!(new_ids[1], ids[1], "the row of `time` was replaced");
    let limit = Duration::from_secs(10);
    gone(&[u32::try_from(process).unwrap()], false, limit).await;
    let tokyo = json!({"timezone": "Asia/Tokyo"});
    let now = peer.tool("get_current_time", tokyo).await;
    checks::contains(said(now.result()), &["Asia/Tokyo"]);
    let listed = tools(&mut peer).await;
    assert!(listed.contains(&"pid".to_owned()), "{listed:?}");
    assert!(!listed.contains(&"get-sum".to_owned()), "{listed:?}");
    let added = pid(&mut peer, "pid").await;

    // Another project's server stays, even with the same name.
    api.server("b", "time", scripted("time", &[])).await;
    api.delete("/projects/a/products/clock").await;
    assert_eq!(rows().await, (vec![], vec![]));
    let left = "SELECT project_id || ' ' || name FROM kb.project_mcp_servers";
    assert_eq!(db.texts(&gateway, left).await, ["b time"]);
    assert_eq!(tools(&mut peer).await, Vec::<String>::new());
    gone(&[added], false, limit).await;
}

async fn p03_stdio_is_a_child_of_command_args_and_env(db: &Db) {
    let gateway = db.setup().env("OF_THE_HOST", "secret").serve().await;
    let api = Api::admin(&gateway);
    api.project("a").await;
    let mut entry = scripted("child", &["--tools", "2"]);
    entry["env"] = json!({"GREETING": "hello"});
    entry["cwd"] = json!(gateway.folder());
    api.server("a", "child", entry).await;
    let time = python("mcp-server-time", &["--local-timezone", "Europe/Paris"]);
    api.server("a", "time", time).await;
    up(&api, "a", "time").await;
    for mut peer in both(&gateway, "a").await {
        let listed = tools(&mut peer).await;
        assert!(listed.contains(&"tool_1".to_owned()), "{listed:?}");
        let env = peer.tool("env", json!({})).await;
        let env = &env.result()["structuredContent"];
        checks::members(env, json!({"GREETING": "hello", "OF_THE_HOST": null}));
        let cwd = peer.tool("cwd", json!({})).await;
        assert_eq!(cwd.text(), gateway.folder().to_str().unwrap());
        let tools = peer.request("tools/list", json!({})).await;
        checks::contains(tools.response.to_string(), &["Europe/Paris"]);
        let paris = json!({"timezone": "Europe/Paris"});
        let now = peer.tool("get_current_time", paris).await;
        checks::contains(said(now.result()), &["Europe/Paris"]);
    }
}
