//! Tests the five tools over standard streams, in both eras, and the contents of the file.

use serde_json::{Value, json};
use testkit::{Outcome, Peer, StdioClient, peer};
use tokio::process::Command;

const LEGACY: &str = "2025-11-25";

async fn server(file: &std::path::Path, version: &str) -> Peer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolwharf-example-recipes"));
    command.arg("--file").arg(file);
    Peer::stdio(StdioClient::spawn(command), version, json!({})).await
}

fn soup() -> Value {
    json!({
        "title": "Leek soup",
        "ingredients": ["3 leeks", "1 l stock"],
        "steps": ["Cut.", "Cook."],
        "servings": 4,
        "cook_minutes": 30,
        "source_url": "https://example.org/soup",
        "tags": ["Soup"],
    })
}

fn structured(outcome: &Outcome) -> &Value {
    let result = outcome.result();
    assert_ne!(result["isError"], true, "{result}");
    &result["structuredContent"]
}

fn refused(outcome: &Outcome) -> String {
    assert_eq!(outcome.result()["isError"], true, "{}", outcome.result());
    outcome.text().to_owned()
}

#[tokio::test]
async fn recipes_are_kept_over_restarts() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("recipes.db");
    let mut peer = server(&file, LEGACY).await;
    let listed = peer.request("tools/list", json!({})).await;
    let tools = listed.result()["tools"].as_array().expect("tools").iter();
    let names: Vec<_> = tools
        .map(|tool| tool["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(
        names,
        [
            "create_recipe",
            "delete_recipe",
            "get_recipe",
            "list_recipes",
            "update_recipe"
        ]
    );
    let created = peer.tool("create_recipe", soup()).await;
    let id = structured(&created)["id"].clone();
    assert_eq!(structured(&created)["tags"], json!(["soup"]));
    drop(peer);

    let mut peer = server(&file, peer::MODERN).await;
    let read = peer.tool("get_recipe", json!({"id": id})).await;
    assert_eq!(structured(&read)["ingredients"], soup()["ingredients"]);
    let changed = peer
        .tool("update_recipe", json!({"id": id, "servings": 2}))
        .await;
    assert_eq!(structured(&changed)["servings"], 2);
    assert_eq!(structured(&changed)["title"], "Leek soup");
    for (wanted, count) in [
        (json!({}), 1),
        (json!({"text": "LEEK"}), 1),
        (json!({"text": "beef"}), 0),
        (json!({"tag": "Soup"}), 1),
        (json!({"tag": "so"}), 0),
        (json!({"after": id}), 0),
    ] {
        let listed = peer.tool("list_recipes", wanted.clone()).await;
        let recipes = structured(&listed)["recipes"].as_array().expect("a list");
        assert_eq!(recipes.len(), count, "{wanted}");
    }
    structured(&peer.tool("delete_recipe", json!({"id": id})).await);
    let gone = refused(&peer.tool("get_recipe", json!({"id": id})).await);
    assert!(gone.contains("there is no recipe"), "{gone}");
}

#[tokio::test]
async fn what_is_wrong_is_told_and_nothing_is_stored() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut peer = server(&dir.path().join("recipes.db"), LEGACY).await;
    let mut empty = soup();
    empty["steps"] = json!([" "]);
    empty["source_url"] = json!("javascript:alert(1)");
    let wrong = refused(&peer.tool("create_recipe", empty).await);
    assert!(
        wrong.contains("`steps`") && wrong.contains("`source_url`"),
        "{wrong}"
    );

    let first = peer.tool("create_recipe", soup()).await;
    let id = structured(&first)["id"].clone();
    let again = refused(&peer.tool("create_recipe", soup()).await);
    assert!(again.contains(&format!("with the id {id}")), "{again}");
    let listed = peer.tool("list_recipes", json!({})).await;
    let recipes = structured(&listed)["recipes"].as_array().expect("a list");
    assert_eq!(recipes.len(), 1);
    for (tool, arguments) in [
        ("update_recipe", json!({"id": 99, "title": "x"})),
        ("delete_recipe", json!({"id": 99})),
    ] {
        let missing = refused(&peer.tool(tool, arguments).await);
        assert!(missing.contains("id 99"), "{missing}");
    }
}

/// More recipes than fit in one list, each with a title that would break unescaped SQL.
#[tokio::test]
async fn lists_have_pages() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut peer = server(&dir.path().join("recipes.db"), LEGACY).await;
    for n in 0..60 {
        let mut recipe = soup();
        recipe["title"] = json!(format!("Robert'); DROP TABLE recipes;-- {n}"));
        recipe["source_url"] = Value::Null;
        structured(&peer.tool("create_recipe", recipe).await);
    }
    let first = peer.tool("list_recipes", json!({})).await;
    let first = structured(&first);
    assert_eq!(first["recipes"].as_array().map(Vec::len), Some(50));
    let second = peer
        .tool("list_recipes", json!({"after": first["next"]}))
        .await;
    let second = structured(&second);
    assert_eq!(second["recipes"].as_array().map(Vec::len), Some(10));
    assert_eq!(second["next"], Value::Null);
}
