//! S03: calls to a server to which nobody has ever signed in, so that its tools are unknown.

use std::{sync::Arc, time::Duration};

use engine::{Command, Logins, Scope};
use futures_util::future::BoxFuture;
use mcp::{
    Era,
    client::{Access, Authorize, SignIn, Token},
};
use model::ServerSpec;
use serde_json::json;
use tokio::sync::watch;

use crate::support::{ERAS, World, owned, project_id, quiet, server::Scripted, stdio, url};

const LINK: &str = "http://127.0.0.1:6280/login/x";
const TOOL: &str = "sign_in_to_one";

/// A sign-in to each server at a URL, which all callers share.
#[derive(Default)]
struct SharedLogin(watch::Sender<()>);

/// Requests carry no token.
#[derive(Debug)]
struct NoToken;

impl Authorize for NoToken {
    fn token(&self) -> Token {
        Token::Is(None)
    }

    fn refused(&self, _: Option<Access>, _: String) -> BoxFuture<'static, Result<Access, SignIn>> {
        Box::pin(async {
            Err(SignIn {
                reason: "nobody has signed in".into(),
                is_needed: true,
            })
        })
    }
}

impl Logins for SharedLogin {
    fn authorize(&self, spec: &ServerSpec, _: Option<&Arc<str>>) -> Option<Arc<dyn Authorize>> {
        let has_sign_in = spec.launch().is_none();
        has_sign_in.then(|| Arc::new(NoToken) as Arc<dyn Authorize>)
    }

    fn link(&self, _: &ServerSpec, _: &Arc<str>) -> Option<String> {
        Some(LINK.to_owned())
    }

    fn signed_in(&self, _: &ServerSpec, _: &Arc<str>) -> BoxFuture<'static, ()> {
        let mut bell = self.0.subscribe();
        Box::pin(async move {
            let _ = bell.changed().await;
        })
    }
}

/// A world with the server `one`, to which nobody has signed in.
struct SignedOut {
    world: World,
    one: Scripted,
    logins: Arc<SharedLogin>,
}

impl SignedOut {
    async fn new() -> Self {
        let logins = Arc::new(SharedLogin::default());
        let world = World::with_logins(logins.clone());
        let one = world.scripted("one");
        one.script(|script| script.needs_sign_in = true);
        world.put(url("one"));
        world.until_state("one", "blocked").await;
        Self { world, one, logins }
    }

    async fn sign_in(&self) {
        self.one.script(|script| script.needs_sign_in = false);
        self.world.order("one", Command::Start).await;
        self.world.up(&["one"]).await;
        self.logins.0.send_replace(());
    }
}

#[tokio::test(start_paused = true)]
async fn s03_a_tool_gives_the_link() {
    for era in ERAS {
        let signed_out = SignedOut::new().await;
        let client = signed_out.world.client(era).await;
        let _listening = client.listen(&[]).await;
        let tools = client.list("tools").await;
        assert_eq!(tools.len(), 1, "{tools:?}");
        assert_eq!(tools[0]["name"], TOOL);
        assert_eq!(tools[0]["inputSchema"]["type"], "object");
        assert_eq!(tools[0]["_meta"]["dev.toolwharf/server"], "one");
        let reply = client.tool(TOOL, json!({})).await;
        assert!(reply.text().contains(LINK), "{}", reply.raw);
        assert_eq!(reply.result()["isError"], false);
        // So does a call of a tool that belongs to the server. If the server of a tool is unknown, the error names the
        // tool that gives the link.
        let refused = client.tool("one__echo", json!({})).await;
        assert_eq!(refused.reason(), "needs_login");
        assert_eq!(refused.error()["data"]["url"], LINK);
        client.tool("echo", json!({})).await.says(TOOL);

        client.notifications("notifications/tools/list_changed");
        signed_out.sign_in().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let changed = client.notifications("notifications/tools/list_changed");
        assert_eq!(changed.len(), 1, "{changed:?}");
        assert_eq!(client.tools().await, ["echo", "hold"]);
        let reply = client.tool("one__echo", json!({ "n": 1 })).await;
        assert_eq!(reply.json()["n"], 1);
        // A client that still has the old list.
        let reply = client.tool(TOOL, json!({})).await;
        assert!(
            reply.text().contains("needs no sign-in now"),
            "{}",
            reply.raw
        );
    }
}

/// A client that opens links is asked to, and then both calls continue.
#[tokio::test(start_paused = true)]
async fn s03_a_client_that_opens_links_is_asked() {
    for era in ERAS {
        for tool in [TOOL, "one__echo"] {
            let signed_out = SignedOut::new().await;
            let client = signed_out.world.client_that_opens(era).await;
            let sign_in = async {
                quiet().await;
                signed_out.sign_in().await;
            };
            let (reply, ()) = tokio::join!(client.tool(tool, json!({ "n": 1 })), sign_in);
            match tool {
                TOOL => assert!(
                    reply.text().contains("List the tools again"),
                    "{}",
                    reply.raw
                ),
                _ => assert_eq!(reply.json()["n"], 1, "{}", reply.raw),
            }
            if era == Era::Legacy {
                let complete = client.notifications("notifications/elicitation/complete");
                assert_eq!(complete.len(), 1, "{complete:?}");
            }
        }
    }
}

/// If the user does not sign in, the client gets the link in the end.
#[tokio::test(start_paused = true)]
async fn s03_a_client_that_was_asked_and_waits_in_vain_gets_the_link() {
    for era in ERAS {
        let signed_out = SignedOut::new().await;
        let client = signed_out.world.client_that_opens(era).await;
        let reply = client.tool(TOOL, json!({})).await;
        assert!(reply.text().contains(LINK), "{}", reply.raw);
        let refused = client.tool("one__echo", json!({})).await;
        assert_eq!(refused.error()["data"]["url"], LINK);
    }
}

/// Only servers that wait for a sign-in have this tool, and a tool of a server has precedence.
#[tokio::test(start_paused = true)]
async fn s03_the_tool_is_for_servers_without_tools() {
    let signed_out = SignedOut::new().await;
    let world = &signed_out.world;
    let two = world.scripted("two");
    two.script(|script| script.tools = vec![TOOL.to_owned()]);
    world.configure(&[url("one"), stdio("two")]);
    world.up(&["two"]).await;
    let client = world.legacy().await;
    assert_eq!(client.tools().await, [TOOL]);
    client.tool(TOOL, json!({})).await;
    assert_eq!(two.heard("tools/call").len(), 1);
    client
        .tool("sign_in_to_two", json!({}))
        .await
        .says("Unknown tool");
    // The view of the server itself, and the one that other gateways use.
    assert_eq!(
        world.client_at(Era::Modern, "one").await.tools().await,
        [TOOL]
    );
    let bare = Scope {
        is_bare: true,
        server: Some("one".parse().unwrap()),
        ..Scope::default()
    };
    let bare = world.client_of(Era::Modern, bare).await;
    assert!(bare.tools().await.is_empty());
}

/// In a project, the tool is named after the server there. Over all projects, its name contains the project.
#[tokio::test(start_paused = true)]
async fn s03_servers_of_projects() {
    let signed_out = SignedOut::new().await;
    let world = &signed_out.world;
    world.configure(&[]);
    let one = world.owned("shop", "one");
    one.script(|script| script.needs_sign_in = true);
    world.project("shop", &[owned("shop", url("one"))]);
    let client = world.client_in(Era::Modern, "shop").await;
    assert_eq!(client.tools().await, [TOOL]);
    let all = world.modern().await;
    let tools = all.list("tools").await;
    let name = tools[0]["name"].as_str().unwrap();
    assert!(name.starts_with("sign_in_to_shop_one_"), "{name}");
    let id = project_id("shop");
    assert_eq!(tools[0]["_meta"]["dev.toolwharf/project"], id.as_str());
    let reply = all.tool(name, json!({})).await;
    assert!(reply.text().contains(LINK), "{}", reply.raw);
}
